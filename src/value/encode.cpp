// encode(): Value to columns.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "platform/text.h"
#include "value/array_layout.h"
#include "value/codec.h"
#include "value/forward.h"

namespace shmtree::value {

namespace {

// The beginning of `text`, as a string literal of C++ has it.
std::string escaped(std::string_view text) {
  constexpr std::size_t kMost = 40;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char each : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += each;
    } else {
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text.size() > kMost ? shown + "..." : shown;
}

// Receivers in Python could not read it.
Error no_text(const char* what, std::string_view text) {
  return invalid(std::string(what) + " is not UTF-8 from byte " + std::to_string(platform::utf8_prefix(text)) +
                 " of its " + std::to_string(text.size()) + " on: \"" + escaped(text) +
                 "\". Bytes go as shmtree::Bytes.");
}

// Looks for a text that is none, in a tree that is not too deep.
class TextCheck {
 public:
  Status check(const Value& value) {
    return std::visit([this](const auto& held) { return check(held); }, value.variant());
  }

 private:
  template <class Other>
  Status check(const Other&) {
    return success();
  }
  Status check(const std::string& text) {
    return platform::is_text(text) ? success() : no_text("A text to send", text);
  }
  Status check(const List& list) { return check(list.items()); }
  Status check(const Tuple& tuple) { return check(tuple.items()); }
  Status check(const std::vector<Value>& items) {
    for (const Value& item : items) {
      if (Status checked = check(item); !checked) return checked;
    }
    return success();
  }
  Status check(const Dict& dict) {
    for (const Entry& entry : dict.entries()) {
      if (!platform::is_text(entry.key)) return no_text("A key to send", entry.key);
      if (Status checked = check(entry.value); !checked) return checked;
    }
    return success();
  }
};

class Encoder {
 public:
  Encoder(format::FrameBuilder& builder, ExternalArrays* externals, const MovedItems* moved = nullptr)
      : builder_(builder), externals_(externals), moved_(moved) {}

  // False when the error is set.
  bool add(const Value& value) {
    return std::visit([this](const auto& held) { return add(held); }, value.variant());
  }

  Error error;
  bool has_bytes = false;    // which may lie where texts do
  bool wants_moved = false;  // not encoded: it has to know which Items were moved into the value

 private:
  bool add(std::monostate) { return builder_.add_none_node(), true; }
  bool add(bool value) { return builder_.add_bool_node(value), true; }
  bool add(std::int64_t value) { return builder_.add_int_node(value), true; }
  bool add(double value) { return builder_.add_float_node(value), true; }
  bool add(std::uint64_t value) {
    if (value <= INT64_MAX) return add(static_cast<std::int64_t>(value));
    // Nine bytes: the highest says that it is not negative.
    std::array<char, 9> bytes{};
    std::memcpy(bytes.data(), &value, sizeof(value));
    builder_.add_kind(Kind::kBigInt);
    builder_.add_string(bytes.data(), bytes.size());
    return true;
  }
  bool add(std::complex<double> value) {
    builder_.add_kind(Kind::kComplex);
    builder_.add_float(value.real());
    builder_.add_float(value.imag());
    return true;
  }
  bool add(const std::string& text) {
    if (builder_.is_long(text.size()) && !platform::is_text(text))
      return error = no_text("A text to send", text), false;
    return builder_.add_str_node(text.data(), text.size()), true;
  }
  bool add(const Bytes& bytes) {
    has_bytes = true;
    return builder_.add_bytes_node(bytes.data.data(), bytes.data.size()), true;
  }
  bool add(const List& list) { return add_items(Kind::kList, list.items()); }
  bool add(const Tuple& tuple) { return add_items(Kind::kTuple, tuple.items()); }

  bool add_items(Kind kind, const std::vector<Value>& items) {
    if (!enter()) return false;
    builder_.add_kind(kind);
    builder_.add_length(items.size());
    for (const Value& item : items) {
      if (!add(item)) return false;
    }
    builder_.leave();
    return true;
  }

  bool add(const Dict& dict) {
    if (!enter()) return false;
    const auto& entries = dict.entries();
    const bool names =
        std::all_of(entries.begin(), entries.end(), [](const Entry& e) { return e.key.size() <= kMaxNameBytes; });
    builder_.add_kind(names ? Kind::kStrDict : Kind::kDict);
    builder_.add_length(entries.size());
    for (const Entry& entry : entries) {
      if (names) {
        builder_.add_name(entry.key);
      } else if (!add(entry.key)) {
        return false;
      }
      if (!add(entry.value)) return false;
    }
    builder_.leave();
    return true;
  }

  // Apart, for the sake of the others.
  [[gnu::noinline, gnu::cold]] bool add(const Forward& forward) {
    has_bytes = true;
    wants_moved = moved_ == nullptr && has_company(forward);
    if (wants_moved) return false;
    Status added = add_forwarded(forward, moved_, builder_, externals_);
    if (!added) error = std::move(added).error();
    return added.ok();
  }

  bool add(const ArrayRef& array) {
    Result<Layout> layout = layout_of(array);
    if (!layout.ok()) return error = std::move(layout).error(), false;
    format::ArraySource source{.data = array.data,
                               .shape = array.shape.data(),
                               .strides = array.strides.data(),
                               .ndim = static_cast<std::uint8_t>(array.shape.size()),
                               .order = layout->order,
                               .dtype = array.dtype,
                               .read_only = array.read_only,
                               .may_share = true};
    if (externals_ != nullptr && !layout->empty) {
      format::External range;
      std::int64_t at = 0;
      const auto* begin = static_cast<const std::byte*>(array.data) + layout->low;
      if (externals_->find(begin, static_cast<std::uint64_t>(layout->high - layout->low), range, at)) {
        source.external = builder_.add_external(range);
        source.external_offset = at - layout->low;
      }
    }
    builder_.add_kind(Kind::kArray);
    builder_.add_array(source);
    return true;
  }

  [[gnu::noinline, gnu::cold]] bool add(const CapnpRef& message) {
    Status can_be = check(message);
    if (!can_be) return error = std::move(can_be).error(), false;
    builder_.add_kind(Kind::kCapnp);
    builder_.add_int(std::bit_cast<std::int64_t>(message.schema_id));
    builder_.add_length(message.segments.size());
    for (std::size_t i = 0; i < message.segments.size(); ++i) {
      add_segment(message.segments[i], message.lent_bytes.empty() ? 0 : message.lent_bytes[i]);
    }
    return true;
  }

  static Status check(const CapnpRef& message) {
    const std::size_t count = message.segments.size();
    if (count == 0 || count > kMaxSegments) {
      return invalid("Cannot send a Cap'n Proto message with " + std::to_string(count) +
                     " segments; it needs 1 to 512.");
    }
    if (!message.lent_bytes.empty() && message.lent_bytes.size() != count) {
      return invalid("lent_bytes has " + std::to_string(message.lent_bytes.size()) + " entries for " +
                     std::to_string(count) + " segments.");
    }
    for (const auto& segment : message.segments) {
      if (segment.size() % format::kWordBytes == 0 &&
          std::bit_cast<std::uintptr_t>(segment.data()) % format::kWordBytes == 0) {
        continue;
      }
      return invalid("A segment of " + std::to_string(segment.size()) +
                     " bytes cannot be sent: its address and size must be multiples of 8.");
    }
    return success();
  }

  // Marked read-only, so that a message of segments only is forwarded without a copy.
  void add_segment(std::span<const std::byte> segment, std::size_t lent_bytes) {
    const auto bytes = static_cast<std::int64_t>(segment.size());
    format::ArraySource source{.data = segment.data(),
                               .shape = &bytes,
                               .ndim = 1,
                               .dtype = DType::kUInt8,
                               .read_only = true,
                               .may_share = true,
                               .whole_words = true};
    format::External range;
    std::int64_t at = 0;
    const bool may_lend = externals_ != nullptr && lent_bytes >= segment.size() && bytes != 0;
    if (may_lend && externals_->find(segment.data(), lent_bytes, range, at)) {
      source.external = builder_.add_external(range);
      source.external_offset = at;
    }
    builder_.add_array(source);
  }

  bool enter() {
    if (builder_.enter()) return true;
    error = builder_.has_no_stack()
                ? invalid("A value to send is nested too deep for the stack of this thread.")
                : invalid("A value to send is nested deeper than " + std::to_string(kMaxDepth) + ".");
    return false;
  }

  format::FrameBuilder& builder_;
  ExternalArrays* externals_;
  const MovedItems* moved_;
};

// What was promised so far stays so: the same message gives it.
[[gnu::noinline, gnu::cold]] bool add_knowing_moved(const Value& value, format::FrameBuilder& builder,
                                                    ExternalArrays* externals, Encoder& encoder) {
  builder.clear();
  const MovedItems moved(value);
  Encoder knowing(builder, externals, &moved);
  const bool added = knowing.add(value);
  encoder.error = std::move(knowing.error);
  return added;
}

}  // namespace

Status encode(const Value& value, format::FrameBuilder& builder, ExternalArrays* externals) {
  builder.clear();
  Encoder encoder(builder, externals);
  if (!encoder.add(value)) [[unlikely]] {
    if (!encoder.wants_moved || !add_knowing_moved(value, builder, externals, encoder)) return std::move(encoder.error);
  }
  if (encoder.has_bytes || !platform::is_ascii(builder.text())) [[unlikely]] {
    if (Status texts = TextCheck().check(value); !texts) return texts;
  }
  return builder.finish();
}

}  // namespace shmtree::value
