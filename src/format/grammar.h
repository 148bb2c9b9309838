// What each kind of node takes from the columns, as data: for code that treats all kinds alike (the C++ receiver,
// descriptions, tests). Code on the hot path has a switch of its own and does the same.
#pragma once

#include <string_view>

#include "shmtree/kind.h"

namespace shmtree::format {

// The letters of shmtree/kind.h, with these in addition:
//   *x  L = n, then n times what x stands for, up to the end of the rule
//   B   L = n, n bytes of `text` (an S whose bytes are not text)
//   U   T of 16 bytes
//   Q   deque: L = n, L = maxlen + 1 or 0, V*n
//   Z   L flags, V if flags & 2
//   Y   L flag, S if it is not 0
//   D   L dtype, N description if it is 0
//   E   D, L bytes if the dtype is 0, T of one element
// nullptr for numbers without a kind.
constexpr const char* grammar_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kInvalid: return nullptr;
    case Kind::kNone:
    case Kind::kFalse:
    case Kind::kTrue:
    case Kind::kEllipsis:
    case Kind::kNotImplemented:
    case Kind::kTimezoneUtc: return "";
    case Kind::kInt:
    case Kind::kDate: return "I";
    case Kind::kFloat: return "F";
    case Kind::kComplex: return "FF";
    case Kind::kStr:
    case Kind::kDecimal: return "S";
    case Kind::kBigInt:
    case Kind::kBytes:
    case Kind::kByteArray: return "B";
    case Kind::kLongStr:
    case Kind::kLongBytes:
    case Kind::kLongByteArray:
    case Kind::kArray: return "A";
    case Kind::kMemoryView: return "V";
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kSet:
    case Kind::kFrozenSet: return "*V";
    case Kind::kIntList: return "*I";
    case Kind::kFloatList: return "*F";
    case Kind::kDeque: return "Q";
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kCounter: return "*VV";
    case Kind::kStrDict:
    case Kind::kStrOrderedDict: return "*NV";
    case Kind::kDefaultDict: return "V*VV";
    case Kind::kNamedTuple: return "N*V";
    case Kind::kDataclass: return "N*NV";
    case Kind::kEnum: return "NN";
    case Kind::kEnumValue:
    case Kind::kRegistered: return "NV";
    case Kind::kGlobal:
    case Kind::kZoneInfo: return "N";
    case Kind::kPickle: return "B*V";
    case Kind::kLongPickle: return "A*V";
    case Kind::kTime: return "IZ";
    case Kind::kDateTime: return "IIZ";
    case Kind::kTimeDelta: return "II";
    case Kind::kTimezone: return "IY";
    case Kind::kFraction: return "VV";
    case Kind::kUuid: return "U";
    case Kind::kPath: return "LS";
    case Kind::kRange: return "III";
    case Kind::kSlice: return "VVV";
    case Kind::kNumpyScalar: return "E";
    case Kind::kDType: return "D";
    case Kind::kMaskedArray: return "VVVL";
    case Kind::kTensor: return "LA";
  }
  return nullptr;
}

}  // namespace shmtree::format
