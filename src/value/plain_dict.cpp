#include "value/plain_dict.h"

#include <string_view>
#include <variant>

#include "format/metadata_layout.h"
#include "platform/copy.h"
#include "platform/text.h"

namespace shmtree::value {

using format::kWordBytes;

namespace {

constexpr std::size_t words(std::size_t bytes) noexcept {
  return (bytes + kWordBytes - 1) / kWordBytes;
}

// Passes keys and values to `to`, in order. Returns false at the first value that a PlainDict cannot contain.
template <class To>
[[gnu::always_inline]] inline bool pass_entries(const std::vector<Entry>& entries, To& to) noexcept {
  const auto is_short = [](std::string_view text) { return text.size() < format::kLengthEscape; };
  if (entries.size() >= format::kLengthEscape) return false;
  for (const Entry& entry : entries) {
    if (!is_short(entry.key) || !to.key(entry.key)) return false;
    const Value::Variant& value = entry.value.variant();
    if (const auto* real = std::get_if<double>(&value)) {
      to.real(*real);
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      to.number(*number);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      to.kind(*flag ? Kind::kTrue : Kind::kFalse);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      if (!is_short(*text) || !to.text(*text)) return false;
    } else if (std::holds_alternative<std::monostate>(value)) {
      to.kind(Kind::kNone);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<PlainDict> PlainDict::of(const Value& value) noexcept {
  struct Counter : Counts {
    void kind(Kind) noexcept { ++kinds; }
    void number(std::int64_t) noexcept { ++kinds, ++ints; }
    void real(double) noexcept { ++kinds, ++floats; }
    bool text(std::string_view added) noexcept {
      ++kinds, ++lengths;
      Counts::text += added.size();
      return platform::is_ascii(added);
    }
    bool key(std::string_view name) noexcept {
      ++lengths, --kinds;
      return text(name);
    }
  };
  const Dict* const dict = std::get_if<Dict>(&value.variant());
  Counter counter;
  if (dict == nullptr || !pass_entries(dict->entries(), counter)) return std::nullopt;
  return PlainDict(dict->entries(), counter);
}

PlainDict::PlainDict(const std::vector<Entry>& entries, const Counts& counts) noexcept
    : entries_(&entries), counts_(counts) {
  metadata_bytes_ = kWordBytes * (1 + format::kFramePointers + words(counts.kinds) + words(counts.lengths) +
                                  words(counts.text) + counts.ints + counts.floats);
}

void PlainDict::write(std::byte* out) const noexcept {
  struct Columns {
    std::uint8_t *kinds, *lengths;
    char* text_end;
    std::int64_t* ints;
    double* floats;

    void kind(Kind kind) noexcept { *kinds++ = static_cast<std::uint8_t>(kind); }
    void number(std::int64_t value) noexcept { kind(Kind::kInt), *ints++ = value; }
    void real(double value) noexcept { kind(Kind::kFloat), *floats++ = value; }
    bool text(std::string_view text) noexcept { return kind(Kind::kStr), add(text); }
    bool key(std::string_view name) noexcept { return *lengths++ = 0, add(name); }
    bool add(std::string_view text) noexcept {
      *lengths++ = static_cast<std::uint8_t>(text.size());
      platform::copy_short(text_end, text.data(), text.size());
      text_end += text.size();
      return true;
    }
  };
  format::write_header(out, metadata_bytes_, bytes());
  auto* pointer = reinterpret_cast<std::uint64_t*>(out + sizeof(format::FrameHeader));
  *pointer++ = format::struct_pointer(0, 0, format::kFramePointers);
  std::uint64_t* end = pointer + format::kFramePointers;
  const auto column = [&]<class T>(T, std::size_t count) noexcept {
    T* const begin = reinterpret_cast<T*>(end);
    *pointer = count == 0 ? 0 : format::list_pointer<T>(static_cast<std::uint64_t>(end - pointer - 1), count);
    ++pointer;
    end += words(count * sizeof(T));
    if (count != 0) end[-1] = 0;  // the padding
    return begin;
  };
  Columns to{};
  to.kinds = column(std::uint8_t{}, counts_.kinds);
  to.lengths = column(std::uint8_t{}, counts_.lengths);
  to.text_end = column(char{}, counts_.text);
  to.ints = column(std::int64_t{}, counts_.ints);
  to.floats = column(double{}, counts_.floats);
  *pointer = 0;  // no arrays
  to.kind(Kind::kStrDict);
  *to.lengths++ = static_cast<std::uint8_t>(entries_->size());
  pass_entries(*entries_, to);
}

}  // namespace shmtree::value
