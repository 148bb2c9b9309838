// What each kind of node takes from the columns, as data: for code that treats all kinds alike (the C++ receiver,
// descriptions, tests). Code on the hot path has a switch of its own and does the same.
#pragma once

#include <array>
#include <cstdint>

#include "shmtree/kind.h"

namespace shmtree::format {

struct KindRow {
  Kind kind;
  const char* name;
  const char* rule;
};

// The letters of a rule are those of shmtree/kind.h, with these in addition:
//   *x  L = n, then n times what x stands for, up to the end of the rule
//   *A  the same of a Cap'n Proto message's segments (FrameReader::next_segment)
//   B   L = n, n bytes of `text` (an S whose bytes are not text)
//   U   T of 16 bytes
//   Q   deque: L = n, L = maxlen + 1 or 0, V*n
//   Z   L flags, V if flags & 2
//   Y   L flag, S if it is not 0
//   R   L the position of an earlier node whose kind is marked (format/references.h)
//   D   L dtype, N description if it is 0
//   E   D, L bytes if the dtype is 0, T of one element
inline constexpr KindRow kKinds[] = {
    {Kind::kNone, "none", ""},
    {Kind::kFalse, "false", ""},
    {Kind::kTrue, "true", ""},
    {Kind::kInt, "int", "I"},
    {Kind::kBigInt, "bigint", "B"},
    {Kind::kFloat, "float", "F"},
    {Kind::kComplex, "complex", "FF"},
    {Kind::kStr, "str", "S"},
    {Kind::kLongStr, "long_str", "A"},
    {Kind::kBytes, "bytes", "B"},
    {Kind::kLongBytes, "long_bytes", "A"},
    {Kind::kByteArray, "bytearray", "B"},
    {Kind::kLongByteArray, "long_bytearray", "A"},
    {Kind::kMemoryView, "memoryview", "V"},
    {Kind::kEllipsis, "ellipsis", ""},
    {Kind::kNotImplemented, "not_implemented", ""},
    {Kind::kReference, "reference", "R"},
    {Kind::kList, "list", "*V"},
    {Kind::kTuple, "tuple", "*V"},
    {Kind::kIntList, "int_list", "*I"},
    {Kind::kFloatList, "float_list", "*F"},
    {Kind::kSet, "set", "*V"},
    {Kind::kFrozenSet, "frozenset", "*V"},
    {Kind::kDeque, "deque", "Q"},
    {Kind::kDict, "dict", "*VV"},
    {Kind::kStrDict, "str_dict", "*NV"},
    {Kind::kOrderedDict, "ordered_dict", "*VV"},
    {Kind::kStrOrderedDict, "str_ordered_dict", "*NV"},
    {Kind::kDefaultDict, "defaultdict", "V*VV"},
    {Kind::kCounter, "counter", "*VV"},
    {Kind::kNamedTuple, "namedtuple", "N*V"},
    {Kind::kDataclass, "dataclass", "N*NV"},
    {Kind::kEnum, "enum", "NN"},
    {Kind::kEnumValue, "enum_value", "NV"},
    {Kind::kGlobal, "global", "N"},
    {Kind::kRegistered, "registered", "NV"},
    {Kind::kPickle, "pickle", "B*V"},
    {Kind::kLongPickle, "long_pickle", "A*V"},
    {Kind::kDate, "date", "I"},
    {Kind::kTime, "time", "IZ"},
    {Kind::kDateTime, "datetime", "IIZ"},
    {Kind::kTimeDelta, "timedelta", "II"},
    {Kind::kTimezoneUtc, "timezone_utc", ""},
    {Kind::kTimezone, "timezone", "IY"},
    {Kind::kZoneInfo, "zoneinfo", "N"},
    {Kind::kDecimal, "decimal", "S"},
    {Kind::kFraction, "fraction", "VV"},
    {Kind::kUuid, "uuid", "U"},
    {Kind::kPath, "path", "LS"},
    {Kind::kRange, "range", "III"},
    {Kind::kSlice, "slice", "VVV"},
    {Kind::kArray, "array", "A"},
    {Kind::kNumpyScalar, "numpy_scalar", "E"},
    {Kind::kDType, "dtype", "D"},
    {Kind::kMaskedArray, "masked_array", "VVVL"},
    {Kind::kTensor, "tensor", "LA"},
    {Kind::kCapnp, "capnp", "I*A"},
};

inline constexpr auto kKindsByNumber = [] {
  std::array<KindRow, 256> rows{};
  for (const KindRow& row : kKinds) rows[static_cast<std::uint8_t>(row.kind)] = row;
  return rows;
}();

// nullptr for numbers without a kind.
constexpr const char* grammar_of(Kind kind) noexcept {
  return kKindsByNumber[static_cast<std::uint8_t>(kind)].rule;
}

}  // namespace shmtree::format
