// encode(): writes a Value as a frame. Include this header only to define a Lender.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "platform/text.h"
#include "value/array_layout.h"
#include "value/codec.h"
#include "value/forward.h"

namespace shmtree::value {

// Returns kInvalid for text that is not UTF-8, which receivers in Python could not read. `what` begins the error: "A
// text to send".
Error no_text(const char* what, std::string_view text);
// Returns false with the error set if a text in `value` is not UTF-8.
bool check_texts(const Value& value, Error& error);
// Returns kInvalid for segments that cannot be a Cap'n Proto message.
Status check_segments(const CapnpRef& message);

template <Lender L>
class Encoder {
 public:
  Encoder(format::FrameBuilder& builder, L& lender, const MovedItems* moved = nullptr)
      : builder_(builder), lender_(lender), moved_(moved) {}

  // Returns false with either the error or `wants_moved` set.
  bool add(const Value& value) {
    return std::visit([this](const auto& held) { return this->add(held); }, value.variant());
  }

  Error error;
  bool has_bytes = false;    // True if a text of the frame may not be UTF-8.
  bool wants_moved = false;  // The value was not encoded, because encoding must know which Items were moved into it.

 private:
  bool add(std::monostate) { return builder_.add_none_node(), true; }
  bool add(bool value) { return builder_.add_bool_node(value), true; }
  bool add(std::int64_t value) { return builder_.add_int_node(value), true; }
  bool add(double value) { return builder_.add_float_node(value), true; }
  bool add(std::uint64_t value) {
    if (value <= INT64_MAX) return add(static_cast<std::int64_t>(value));
    // Nine bytes: the highest byte contains only the sign bit, which is 0.
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

  // Not inlined, so that the common cases stay small.
  [[gnu::noinline, gnu::cold]] bool add(const Forward& forward) {
    has_bytes = true;
    wants_moved = moved_ == nullptr && has_other_items(forward);
    if (wants_moved) return false;
    Status added = add_forwarded(forward, moved_, builder_, lender_);
    if (added) return true;
    error = std::move(added).error();
    return false;
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
    if (!layout->empty) {
      const auto* begin = static_cast<const std::byte*>(array.data) + layout->low;
      lend({.begin = begin, .bytes = static_cast<std::uint64_t>(layout->high - layout->low)}, builder_, lender_,
           source);
    }
    builder_.add_kind(Kind::kArray);
    builder_.add_array(source);
    return true;
  }

  [[gnu::noinline, gnu::cold]] bool add(const CapnpRef& message) {
    Status can_be = check_segments(message);
    if (!can_be) return error = std::move(can_be).error(), false;
    builder_.add_kind(Kind::kCapnp);
    builder_.add_int(std::bit_cast<std::int64_t>(message.schema_id));
    builder_.add_length(message.segments.size());
    for (std::size_t i = 0; i < message.segments.size(); ++i) {
      add_segment(message.segments[i], message.lent_bytes.empty() ? 0 : message.lent_bytes[i]);
    }
    return true;
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
    if (lent_bytes >= segment.size() && bytes != 0) {
      lend({.begin = segment.data(), .bytes = lent_bytes}, builder_, lender_, source);
    }
    builder_.add_array(source);
  }

  bool enter() { return builder_.enter() || too_deep(); }
  [[gnu::noinline, gnu::cold]] bool too_deep() {
    error = too_deep_error(builder_);
    return false;
  }

  format::FrameBuilder& builder_;
  L& lender_;
  const MovedItems* moved_;
};

// Encodes the value again, now that the Items that were moved into it are known. The memory that the lender has lent to
// this message stays lent.
template <Lender L>
[[gnu::noinline, gnu::cold]] bool add_knowing_moved(const Value& value, format::FrameBuilder& builder, L& lender,
                                                    Error& error) {
  builder.clear();
  const MovedItems moved(value);
  Encoder knowing(builder, lender, &moved);
  const bool added = knowing.add(value);
  error = std::move(knowing.error);
  return added;
}

template <Lender L>
Status encode(const Value& value, format::FrameBuilder& builder, L& lender) {
  builder.clear();
  Encoder encoder(builder, lender);
  if (!encoder.add(value)) [[unlikely]] {
    if (!encoder.wants_moved || !add_knowing_moved(value, builder, lender, encoder.error)) {
      return std::move(encoder.error);
    }
  }
  if (encoder.has_bytes || !platform::is_ascii(builder.text())) [[unlikely]] {
    if (!check_texts(value, encoder.error)) return std::move(encoder.error);
  }
  return builder.finish();
}

}  // namespace shmtree::value
