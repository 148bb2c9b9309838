// Errors of encode(), and the encode() that copies every array.
#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "value/encoder.h"

namespace shmtree::value {

namespace {

// Returns the beginning of `text`, escaped like a C++ string literal.
std::string escaped(std::string_view text) {
  constexpr std::size_t kMax = 40;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char each : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += each;
    } else {
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text.size() > kMax ? shown + "..." : shown;
}

// Searches the value for text that is not UTF-8. The caller has checked the depth.
class TextCheck {
 public:
  explicit TextCheck(Error& error) : error_(error) {}
  // Returns false, with the error set, if it finds such text.
  bool check(const Value& value) {
    return std::visit([this](const auto& held) { return check(held); }, value.variant());
  }

 private:
  template <class Other>
  bool check(const Other&) {
    return true;
  }
  bool check(const std::string& text) { return check("A text to send", text); }
  bool check(const char* what, const std::string& text) {
    if (platform::is_text(text)) return true;
    return error_ = no_text(what, text), false;
  }
  bool check(const List& list) { return check(list.items()); }
  bool check(const Tuple& tuple) { return check(tuple.items()); }
  bool check(const std::vector<Value>& items) {
    return std::all_of(items.begin(), items.end(), [this](const Value& item) { return check(item); });
  }
  bool check(const Dict& dict) {
    const auto& entries = dict.entries();
    return std::all_of(entries.begin(), entries.end(),
                       [this](const Entry& entry) { return check("A key to send", entry.key) && check(entry.value); });
  }

  Error& error_;
};

// Copies every array.
class NoLender {
 public:
  explicit NoLender(EncodeOptions options) noexcept : options_(options) {}
  static std::optional<LentRange> lend(const ArrayMemory&) noexcept { return std::nullopt; }
  static bool is_given(const Origin&) noexcept { return false; }
  EncodeOptions options() const noexcept { return options_; }

 private:
  const EncodeOptions options_;
};

}  // namespace

Error no_text(const char* what, std::string_view text) {
  return invalid(std::string(what) + " is not UTF-8 from byte " + std::to_string(platform::utf8_prefix(text)) +
                 " of its " + std::to_string(text.size()) + " on: \"" + escaped(text) +
                 "\". Send binary data as shmtree::Bytes.");
}

bool check_texts(const Value& value, Error& error) {
  return TextCheck(error).check(value);
}

Status check_segments(const CapnpRef& message) {
  const std::size_t count = message.segments.size();
  if (count == 0 || count > kMaxSegments) {
    return invalid("Cannot send a Cap'n Proto message with " + std::to_string(count) + " segments; it needs 1 to " +
                   std::to_string(kMaxSegments) + ".");
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

Status encode(const Value& value, format::FrameBuilder& builder, EncodeOptions options) {
  NoLender none(options);
  return encode(value, builder, none);
}

}  // namespace shmtree::value
