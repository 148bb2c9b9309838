/// @file
/// What a node of a message is, and what its array elements are. Numbers are part of the frame: never change or reuse
/// one.
///
/// Thread safety: constants only. Used by every layer from `format` up, and by the receivers of an `Item`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shmtree {

/// The kind of a node; docs/frame.md lists what a new one needs. The letters say what the node takes from the columns
/// of its frame, in this order:
///   I  a value of `ints`                  F  a value of `floats`
///   L  a value of `lengths`               N  a name (class, field or key; see docs/frame.md)
///   S  L = n, then n bytes of `text`      T  bytes of `text` whose number is known
///   A  an array descriptor                V  a child node
/// `x*n` is x repeated n times, n being the value of the L before it.
enum class Kind : std::uint8_t {
  kInvalid = 0,  ///< never written

  kNone = 1,
  kFalse = 2,
  kTrue = 3,
  kInt = 4,             ///< I
  kBigInt = 5,          ///< S: little-endian two's complement, at least one byte
  kFloat = 6,           ///< F
  kComplex = 7,         ///< F real, F imaginary
  kStr = 8,             ///< S: UTF-8; a lone surrogate is encoded like any other code point, in three bytes
  kLongStr = 9,         ///< A: UTF-8 in a raw buffer (uint8, one dimension)
  kBytes = 10,          ///< S
  kLongBytes = 11,      ///< A: uint8, one dimension
  kByteArray = 12,      ///< S
  kLongByteArray = 13,  ///< A: uint8, one dimension
  kMemoryView = 14,     ///< V: a kArray with the elements
  kEllipsis = 15,
  kNotImplemented = 16,
  kReference = 17,  ///< L position of an earlier node, whose object it is (an Item has it only of what it is in)

  kList = 20,       ///< L = n, V*n
  kTuple = 21,      ///< L = n, V*n
  kIntList = 22,    ///< L = n, I*n: a list of nothing but ints of 64 bits
  kFloatList = 23,  ///< L = n, F*n: a list of nothing but floats
  kSet = 24,        ///< L = n, V*n
  kFrozenSet = 25,  ///< L = n, V*n
  kDeque = 26,      ///< L = n, L = maxlen + 1 or 0 for none, V*n

  kDict = 30,            ///< L = n, (V key, V value)*n, in the order of insertion
  kStrDict = 31,         ///< L = n, (N key, V value)*n: every key is a str of at most kMaxNameBytes
  kOrderedDict = 32,     ///< L = n, (V key, V value)*n
  kStrOrderedDict = 33,  ///< L = n, (N key, V value)*n
  kDefaultDict = 34,     ///< V factory (kNone or kGlobal), L = n, (V key, V value)*n
  kCounter = 35,         ///< L = n, (V key, V count)*n

  /// A class is named "module:qualname".
  kNamedTuple = 40,  ///< N class, L = n, V*n
  kDataclass = 41,   ///< N class, L = n, (N field, V value)*n
  kEnum = 42,        ///< N class, N member
  kEnumValue = 43,   ///< N class, V value: for members without a name of their own (combined flags)
  kGlobal = 44,      ///< N: the class or function itself
  kRegistered = 45,  ///< N class, V what the registered `flatten` returned
  kPickle = 46,      ///< S pickle, L = n, V*n for its n buffers: kArray, kTensor or kMaskedArray
  kLongPickle = 47,  ///< A pickle (uint8, one dimension), L = n, V*n as with kPickle

  kDate = 50,         ///< I = year << 9 | month << 5 | day
  kTime = 51,         ///< I = microseconds of the day, L = fold | has_tz << 1, V tzinfo if has_tz
  kDateTime = 52,     ///< I as kDate, I as kTime, L as kTime, V tzinfo if has_tz
  kTimeDelta = 53,    ///< I = days, I = microseconds in [0, 86'400'000'000)
  kTimezoneUtc = 54,  ///< datetime.timezone.utc
  kTimezone = 55,     ///< I = offset in microseconds, L = has_name, S name if has_name
  kZoneInfo = 56,     ///< N key, such as "Europe/Paris"

  kDecimal = 60,   ///< S: what str() gives
  kFraction = 61,  ///< V numerator, V denominator (kInt or kBigInt)
  kUuid = 62,      ///< T of 16 bytes, most significant first
  kPath = 63,      ///< L flavour: 0 Path, 1 PurePosixPath, 2 PureWindowsPath; S
  kRange = 64,     ///< I start, I stop, I step
  kSlice = 65,     ///< V start, V stop, V step

  kArray = 70,        ///< A
  kNumpyScalar = 71,  ///< L dtype (N description, L bytes, if it is DType::kOther), T of the element's bytes
  kDType = 72,        ///< L dtype (N description if it is DType::kOther)
  kMaskedArray = 73,  ///< V data (kArray), V mask (kArray or kFalse), V fill value (any, kNone for none), L hardmask
  kTensor = 74,       ///< L flags: 1 requires_grad, 2 is a Parameter; A
  kCapnp = 75,        ///< I schema id, L = n, A*n: a Cap'n Proto message, the words of its n segments as uint8
};

/// The name of a kind as documentation and messages write it ("str_dict"), "unknown" for a number without a kind.
std::string_view name_of(Kind kind) noexcept;

/// The type of an array's elements, little-endian. Everything else is kOther with a textual description.
enum class DType : std::uint8_t {
  kOther = 0,  ///< described by text: structured, big-endian, datetime64 and timedelta64, S, U, V
  kBool = 1,
  kInt8 = 2,
  kUInt8 = 3,
  kInt16 = 4,
  kUInt16 = 5,
  kInt32 = 6,
  kUInt32 = 7,
  kInt64 = 8,
  kUInt64 = 9,
  kFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  /// Below: no native type in C++; NumPy has none of them, torch all.
  kBFloat16 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kComplex32 = 21,  ///< two float16
};
/// The highest number of a DType.
inline constexpr std::uint8_t kMaxDType = 21;

/// Bytes of one element; 0 for kOther and for numbers without a type.
constexpr std::size_t item_bytes(DType dtype) noexcept {
  constexpr std::uint8_t kBytes[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 8, 16, 2, 1, 1, 1, 1, 1, 4};
  const auto code = static_cast<std::size_t>(dtype);
  return code <= kMaxDType ? kBytes[code] : 0;
}

/// "float32", "bfloat16"...; "other" for kOther, "unknown" for a number without a type.
std::string_view name_of(DType dtype) noexcept;

/// Nested deeper than this is refused by senders and receivers.
inline constexpr std::size_t kMaxDepth = 1000;
/// Dimensions of one array. NumPy 2 allows as many.
inline constexpr std::size_t kMaxDims = 64;
/// Bytes of a name: a longer key makes its dict a kDict.
inline constexpr std::size_t kMaxNameBytes = 4096;
/// Maximum number of segments of a Cap'n Proto message.
inline constexpr std::size_t kMaxSegments = 512;
/// Strings and bytes over this are raw buffers.
inline constexpr std::size_t kMaxInlineText = 4096;

}  // namespace shmtree
