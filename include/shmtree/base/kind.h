/// @file
/// Kinds of nodes in a message, and types of array elements. The numbers are part of the frame format: never change or
/// reuse one.
///
/// Thread safety: constants only. Used by every layer from `format` up, and by the receivers of an `Item`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shmtree {

/// The kind of a node. Each comment lists the parts of the node, in the order in which an Item has them.
/// `tools/kinds.py` generates the table of kinds in docs/internals/frame.md from this header and src/format/grammar.h.
enum class Kind : std::uint8_t {
  kInvalid = 0,  ///< Never written.

  kNone = 1,             ///< None, or null.
  kFalse = 2,            ///< False.
  kTrue = 3,             ///< True.
  kInt = 4,              ///< A 64-bit int.
  kBigInt = 5,           ///< Two's complement, little-endian, at least one byte.
  kFloat = 6,            ///< A 64-bit float.
  kComplex = 7,          ///< Real, imaginary.
  kStr = 8,              ///< UTF-8; a lone surrogate is encoded like any other code point, in three bytes.
  kLongStr = 9,          ///< Like str, in a buffer: a one-dimensional array of uint8 in C order.
  kBytes = 10,           ///< Bytes.
  kLongBytes = 11,       ///< Like bytes, in a buffer like that of long_str.
  kByteArray = 12,       ///< Mutable bytes.
  kLongByteArray = 13,   ///< Like bytearray, in a buffer like that of long_str.
  kMemoryView = 14,      ///< A node of kind array with the elements.
  kEllipsis = 15,        ///< Ellipsis.
  kNotImplemented = 16,  ///< NotImplemented.
  kReference = 17,       ///< The object of an earlier node; an Item has this kind only inside that object (cycle).

  kList = 20,       ///< Items.
  kTuple = 21,      ///< Items.
  kIntList = 22,    ///< A list of 64-bit ints.
  kFloatList = 23,  ///< A list of floats.
  kSet = 24,        ///< Items.
  kFrozenSet = 25,  ///< Items.
  kDeque = 26,      ///< Items; L is maxlen + 1, or 0 without a maxlen.

  kDict = 30,            ///< Keys and values, in the order of insertion.
  kStrDict = 31,         ///< Like dict; the keys are strs of at most 4,096 bytes.
  kOrderedDict = 32,     ///< An OrderedDict, like dict.
  kStrOrderedDict = 33,  ///< An OrderedDict, like str_dict.
  kDefaultDict = 34,     ///< The factory (a none or a global), then keys and values like dict.
  kCounter = 35,         ///< Keys and counts.

  kNamedTuple = 40,  ///< Class, items. A class is a string "module:qualname", here and below.
  kDataclass = 41,   ///< Class, then each field at most once. Also used for classes of attrs.
  kEnum = 42,        ///< Class, name of the member.
  kEnumValue = 43,   ///< Class, value; for a member without a name (combined flags).
  kGlobal = 44,      ///< A class or function.
  /// Class, the value that its `flatten` returned. Also used for `array.array` (typecode, bytes as uint8),
  /// SimpleNamespace (its dict) and models of pydantic (attributes, extra, fields set, private).
  kRegistered = 45,
  /// A pickle of protocol 5, then one value per out-of-band buffer, in order. The value is a one-dimensional array of
  /// uint8 for plain bytes, or an array, masked array or tensor that was taken out of the pickle.
  kPickle = 46,
  kLongPickle = 47,  ///< Like pickle, with the pickle in a buffer.

  kDate = 50,         ///< Year << 9, month << 5, day.
  kTime = 51,         ///< Microseconds of the day; flags: 1 fold, 2 a tzinfo follows.
  kDateTime = 52,     ///< The values of date, then those of time.
  kTimeDelta = 53,    ///< Days, microseconds from 0 to 86,399,999,999.
  kTimezoneUtc = 54,  ///< The constant `datetime.timezone.utc`.
  kTimezone = 55,     ///< Offset in microseconds; 1 if a name follows.
  kZoneInfo = 56,     ///< Key, such as "Europe/Paris".

  kDecimal = 60,   ///< Text.
  kFraction = 61,  ///< Numerator, denominator.
  kUuid = 62,      ///< Most significant byte first.
  kPath = 63,      ///< 0 Path, 1 PurePosixPath, 2 PureWindowsPath; text.
  kRange = 64,     ///< Start, stop, step.
  kSlice = 65,     ///< Start, stop, step.

  kArray = 70,        ///< An array.
  kNumpyScalar = 71,  ///< Element type, then the element's bytes; with type 0, its size (L) comes before them.
  kDType = 72,        ///< Element type.
  kMaskedArray = 73,  ///< Data (array), mask (array or false), fill value (none for the default), 1 for a hard mask.
  kTensor = 74,       ///< Flags: 1 requires_grad, 2 is a Parameter.
  kCapnp = 75,        ///< A Cap'n Proto message: the id of its root's type, its n segments.
  /// Layout: 0 COO, 1 CSR, 2 CSC, 3 BSR, 4 BSC; flags: 1 coalesced, 2 requires_grad; shape (tuple of int); n tensors.
  /// The tensors are indices and values for COO, otherwise compressed indices, plain indices and values.
  kSparseTensor = 76,
};

/// Returns the name of a kind as documentation and messages write it ("str_dict"); "unknown" for any other number.
std::string_view name_of(Kind kind) noexcept;

/// The type of an array's elements, little-endian. All other types are kOther with a textual description.
enum class DType : std::uint8_t {
  kOther = 0,  ///< Described by text: structured, big-endian, datetime64 and timedelta64, S, U, V.
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
  /// The types below have no native equivalent in C++ or NumPy. torch has all of them.
  kBFloat16 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kComplex32 = 21,  ///< Two float16.
};
/// The highest number of a DType.
inline constexpr std::uint8_t kMaxDType = 21;

/// Returns the size of one element in bytes; 0 for kOther and for numbers without a type.
constexpr std::size_t item_bytes(DType dtype) noexcept {
  constexpr std::uint8_t kBytes[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 8, 16, 2, 1, 1, 1, 1, 1, 4};
  const auto code = static_cast<std::size_t>(dtype);
  return code <= kMaxDType ? kBytes[code] : 0;
}

/// Returns "float32", "bfloat16" and so on; "other" for kOther, "unknown" for a number without a type.
std::string_view name_of(DType dtype) noexcept;

/// Maximum nesting depth. Senders and receivers refuse deeper values.
inline constexpr std::size_t kMaxDepth = 1000;
/// Maximum number of dimensions of an array, the same as in NumPy 2.
inline constexpr std::size_t kMaxDims = 64;
/// Maximum bytes of a name. A dict with a longer key is a kDict.
inline constexpr std::size_t kMaxNameBytes = 4096;
/// Maximum number of segments of a Cap'n Proto message.
inline constexpr std::size_t kMaxSegments = 512;
/// Longer strings and bytes are raw buffers.
inline constexpr std::size_t kMaxInlineText = 4096;

}  // namespace shmtree
