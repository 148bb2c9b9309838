// The table of kinds: data about each kind for code that walks over nodes.
//
// Reading into an Item, forwarding, checking, describing, and the bindings' handlers of rarer kinds follow the rules of
// this table. For speed, the bindings handle the most frequent kinds without it, with the same result.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "shmtree/base/kind.h"

namespace shmtree::format {

// When a reader creates the object of a node. With kBeforeItems it creates the object empty, so that items can refer to
// it.
enum class Made : bool { kAfterItems, kBeforeItems };

struct KindRow {
  Kind kind;
  const char* name;         // in descriptions and in docs/internals/frame.md
  const char* words;        // in error messages, with the article
  const char* rule;         // values that the node takes from the columns, in this order
  const char* limits = "";  // one limit per letter of the rule; may be shorter
  Made made = Made::kAfterItems;
};

// The letters of a rule, and what the node takes from the columns for each:
//   I   a value of `ints`                  F   a value of `floats`
//   L   a value of `lengths`               N   a name (class, field or key; see docs/internals/frame.md)
//   S   L = n, then n bytes of `text`      B   as S, but the bytes are not text
//   U   16 bytes of `text`                 V   a child node
//   A   an array descriptor
//   *x  L = n, then n times what x stands for, up to the end of the rule
//   *A  L = n, then the n segments of a Cap'n Proto message (FrameReader::next_segment)
//   Q   deque: L = n, L = maxlen + 1 or 0, V*n
//   Z   L flags, V if flags & 2
//   Y   L flag, S if it is not 0
//   R   L = position of an earlier node of a marked kind (format/references.h)
//   D   L dtype, N description if it is 0
//   E   D, L bytes if the dtype is 0, T of one element
// The letters of the limits; any other letter means no limit:
//   0 to 9   of L: the maximum             c   of N: the name of a class or function, "module:qualname"
//   d, t     of I: a packed date; microseconds of a day
//   D, o     of I: days of a timedelta; offset from UTC in microseconds
//   s        of I: not 0                   a, i   of V: an array; an int or bigint
//   u, b     of A: UTF-8 text; any bytes. Without a limit, A is the array that the node stands for
//   z        of N: the text that the node stands for
inline constexpr KindRow kKinds[] = {
    {Kind::kNone, "none", "None", ""},
    {Kind::kFalse, "false", "a bool", ""},
    {Kind::kTrue, "true", "a bool", ""},
    {Kind::kInt, "int", "an int", "I"},
    {Kind::kBigInt, "bigint", "an int", "B"},
    {Kind::kFloat, "float", "a float", "F"},
    {Kind::kComplex, "complex", "a complex", "FF"},
    {Kind::kStr, "str", "a string", "S"},
    {Kind::kLongStr, "long_str", "a string", "A", "u"},
    {Kind::kBytes, "bytes", "bytes", "B"},
    {Kind::kLongBytes, "long_bytes", "bytes", "A", "b"},
    {Kind::kByteArray, "bytearray", "a bytearray", "B"},
    {Kind::kLongByteArray, "long_bytearray", "a bytearray", "A", "b"},
    {Kind::kMemoryView, "memoryview", "a memoryview", "V", "a"},
    {Kind::kEllipsis, "ellipsis", "Ellipsis", ""},
    {Kind::kNotImplemented, "not_implemented", "NotImplemented", ""},
    {Kind::kReference, "reference", "a reference", "R"},
    {Kind::kList, "list", "a list", "*V", "", Made::kBeforeItems},
    {Kind::kTuple, "tuple", "a tuple", "*V"},
    {Kind::kIntList, "int_list", "a list", "*I"},
    {Kind::kFloatList, "float_list", "a list", "*F"},
    {Kind::kSet, "set", "a set", "*V", "", Made::kBeforeItems},
    {Kind::kFrozenSet, "frozenset", "a frozenset", "*V"},
    {Kind::kDeque, "deque", "a deque", "Q", "", Made::kBeforeItems},
    {Kind::kDict, "dict", "a dict", "*VV", "", Made::kBeforeItems},
    {Kind::kStrDict, "str_dict", "a dict", "*NV", "", Made::kBeforeItems},
    {Kind::kOrderedDict, "ordered_dict", "an OrderedDict", "*VV", "", Made::kBeforeItems},
    {Kind::kStrOrderedDict, "str_ordered_dict", "an OrderedDict", "*NV", "", Made::kBeforeItems},
    {Kind::kDefaultDict, "defaultdict", "a defaultdict", "V*VV", "", Made::kBeforeItems},
    {Kind::kCounter, "counter", "a Counter", "*VV", "", Made::kBeforeItems},
    {Kind::kNamedTuple, "namedtuple", "a namedtuple", "N*V", "c"},
    {Kind::kDataclass, "dataclass", "a dataclass", "N*NV", "c", Made::kBeforeItems},
    {Kind::kEnum, "enum", "an enum member", "NN", "c"},
    {Kind::kEnumValue, "enum_value", "an enum member", "NV", "c"},
    {Kind::kGlobal, "global", "a class or function", "N", "c"},
    {Kind::kRegistered, "registered", "a registered object", "NV", "c"},
    {Kind::kPickle, "pickle", "a pickled object", "B*V"},
    {Kind::kLongPickle, "long_pickle", "a pickled object", "A*V", "b"},
    {Kind::kDate, "date", "a date", "I", "d"},
    {Kind::kTime, "time", "a time", "IZ", "t"},
    {Kind::kDateTime, "datetime", "a datetime", "IIZ", "dt"},
    {Kind::kTimeDelta, "timedelta", "a timedelta", "II", "Dt"},
    {Kind::kTimezoneUtc, "timezone_utc", "a timezone", ""},
    {Kind::kTimezone, "timezone", "a timezone", "IY", "o"},
    {Kind::kZoneInfo, "zoneinfo", "a ZoneInfo", "N", "z"},
    {Kind::kDecimal, "decimal", "a Decimal", "S"},
    {Kind::kFraction, "fraction", "a Fraction", "VV", "ii"},
    {Kind::kUuid, "uuid", "a UUID", "U"},
    {Kind::kPath, "path", "a Path", "LS", "2"},
    {Kind::kRange, "range", "a range", "III", "..s"},
    {Kind::kSlice, "slice", "a slice", "VVV"},
    {Kind::kArray, "array", "an array", "A"},
    {Kind::kNumpyScalar, "numpy_scalar", "a NumPy scalar", "E"},
    {Kind::kDType, "dtype", "a dtype", "D"},
    {Kind::kMaskedArray, "masked_array", "a masked array", "VVVL", "a..1"},
    {Kind::kTensor, "tensor", "a tensor", "LA", "3"},
    {Kind::kCapnp, "capnp", "a Cap'n Proto message", "I*A"},
    {Kind::kSparseTensor, "sparse_tensor", "a sparse tensor", "LLV*V", "43"},
};

// Properties of a kind that follow from its row.
enum Trait : std::uint16_t {
  kHasChildren = 1,      // has child nodes, or may have some
  kHasKeyNodes = 2,      // entries of a key and a value, two nodes each
  kHasNamedEntries = 4,  // entries with a name as their key
  kIsSequence = 8,
  kIsArray = 16,  // the node is the array that its A describes
  kIsBlob = 32,   // its A describes a run of bytes
  kHasSegments = 64,
  kHasClass = 128,  // its first name is the name of a class or function
  kHasFloats = 256,
  kIsText = 512,
  kIsBytes = 1024,
  kMadeBeforeItems = 2048,
};

constexpr std::uint16_t traits_of(const KindRow& row) noexcept {
  const std::string_view rule = row.rule, limits = row.limits;
  const auto has = [rule](std::string_view part) { return rule.find(part) != std::string_view::npos; };
  const char first = limits.empty() ? '.' : limits[0];
  const bool is_blob = first == 'u' || first == 'b';
  int traits = 0;
  if (has("V") || has("Q") || has("Z")) traits |= kHasChildren;
  if (has("*VV")) traits |= kHasKeyNodes;
  if (has("*NV")) traits |= kHasNamedEntries;
  if (rule == "*V" || rule == "*I" || rule == "*F" || rule == "N*V" || rule == "Q") traits |= kIsSequence;
  if (rule.ends_with('A') && !has("*") && !is_blob) traits |= kIsArray;
  if (is_blob) traits |= kIsBlob;
  if (has("*A")) traits |= kHasSegments;
  if (first == 'c') traits |= kHasClass;
  if (has("F")) traits |= kHasFloats;
  if (rule.ends_with('S') || first == 'z' || first == 'u') traits |= kIsText;
  if (rule.starts_with('B') || rule == "U" || first == 'b') traits |= kIsBytes;
  if (row.made == Made::kBeforeItems) traits |= kMadeBeforeItems;
  return static_cast<std::uint16_t>(traits);
}

namespace detail {

template <class T, class Of>
constexpr std::array<T, 256> by_number(Of of) {
  std::array<T, 256> found{};
  for (const KindRow& row : kKinds) found[static_cast<std::uint8_t>(row.kind)] = of(row);
  return found;
}

inline constexpr auto kRules = by_number<const char*>([](const KindRow& row) { return row.rule; });
inline constexpr auto kLimits = by_number<std::array<char, 8>>([](const KindRow& row) {
  std::array<char, 8> padded{};
  std::string_view(row.limits).copy(padded.data(), padded.size());
  return padded;
});
inline constexpr auto kTraits = by_number<std::uint16_t>([](const KindRow& row) { return traits_of(row); });
inline constexpr auto kRows =
    by_number<std::uint8_t>([](const KindRow& row) { return static_cast<std::uint8_t>(&row - kKinds + 1); });

}  // namespace detail

// nullptr for numbers without a kind.
constexpr const char* grammar_of(Kind kind) noexcept {
  return detail::kRules[static_cast<std::uint8_t>(kind)];
}

// KindRow::limits of a kind, with zeros up to the length of the longest rule.
constexpr const char* limits_of(Kind kind) noexcept {
  return detail::kLimits[static_cast<std::uint8_t>(kind)].data();
}

constexpr bool has_trait(Kind kind, int trait) noexcept {
  return (detail::kTraits[static_cast<std::uint8_t>(kind)] & trait) != 0;
}

// Returns true if the limit allows a child of this kind. Checks only the kind, not the value.
constexpr bool is_allowed(Kind child, char limit) noexcept {
  if (limit == 'a') return child == Kind::kArray;
  return limit != 'i' || child == Kind::kInt || child == Kind::kBigInt;
}

// Returns the maximum of an L with this limit.
constexpr std::uint64_t max_of(char limit) noexcept {
  return limit >= '0' && limit <= '9' ? static_cast<std::uint64_t>(limit - '0') : UINT64_MAX;
}

// nullptr for numbers without a kind.
constexpr const KindRow* row_of(Kind kind) noexcept {
  const std::uint8_t row = detail::kRows[static_cast<std::uint8_t>(kind)];
  return row == 0 ? nullptr : &kKinds[row - 1];
}

}  // namespace shmtree::format
