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

/// The kind of a node. The comments name the parts of a node, in the order in which an Item has them. `tools/kinds.py`
/// makes the table of kinds in docs/frame.md from this header and src/format/grammar.h, and adds the columns.
enum class Kind : std::uint8_t {
  kInvalid = 0,  ///< never written

  kNone = 1,             ///< None, or null
  kFalse = 2,            ///< false
  kTrue = 3,             ///< true
  kInt = 4,              ///< a 64-bit int
  kBigInt = 5,           ///< two's complement, little-endian, at least one byte
  kFloat = 6,            ///< a 64-bit float
  kComplex = 7,          ///< real, imaginary
  kStr = 8,              ///< UTF-8; a lone surrogate is encoded like any other code point, in three bytes
  kLongStr = 9,          ///< as str, in a buffer: an array of uint8 with one dimension, C order
  kBytes = 10,           ///< bytes
  kLongBytes = 11,       ///< as bytes, in a buffer like that of long_str
  kByteArray = 12,       ///< mutable bytes
  kLongByteArray = 13,   ///< as bytearray, in a buffer like that of long_str
  kMemoryView = 14,      ///< a node of kind array with the elements
  kEllipsis = 15,        ///< Ellipsis
  kNotImplemented = 16,  ///< NotImplemented
  kReference = 17,       ///< the object of an earlier node; an Item has this kind only inside that object (a cycle)

  kList = 20,       ///< items
  kTuple = 21,      ///< items
  kIntList = 22,    ///< a list of 64-bit ints
  kFloatList = 23,  ///< a list of floats
  kSet = 24,        ///< items
  kFrozenSet = 25,  ///< items
  kDeque = 26,      ///< items; L is maxlen + 1, or 0 without a maxlen

  kDict = 30,            ///< keys and values, in the order of insertion
  kStrDict = 31,         ///< as dict, with keys that are strs of at most 4,096 bytes
  kOrderedDict = 32,     ///< an OrderedDict, as dict
  kStrOrderedDict = 33,  ///< an OrderedDict, as str_dict
  kDefaultDict = 34,     ///< the factory (a none or a global), then keys and values as in dict
  kCounter = 35,         ///< keys and counts

  kNamedTuple = 40,  ///< class, items; every class is named "module:qualname"
  kDataclass = 41,   ///< class, fields, each at most once; classes of attrs, too
  kEnum = 42,        ///< class, name of the member
  kEnumValue = 43,   ///< class, value: a member without a name of its own (combined flags)
  kGlobal = 44,      ///< a class or function
  /// class, the value that its `flatten` returned. Also used for `array.array` (typecode, bytes as uint8),
  /// SimpleNamespace (its dict) and models of pydantic (attributes, extra, fields set, private)
  kRegistered = 45,
  /// a pickle of protocol 5, and one value for each of its out-of-band buffers, in order: a one-dimensional array of
  /// uint8 for a buffer of bytes; an array, masked array or tensor for one that was taken out of the pickle
  kPickle = 46,
  kLongPickle = 47,  ///< as pickle, with the pickle in a buffer

  kDate = 50,         ///< year << 9, month << 5, day
  kTime = 51,         ///< microseconds of the day; flags 1 fold, 2 a tzinfo follows
  kDateTime = 52,     ///< as date, then as time
  kTimeDelta = 53,    ///< days, microseconds from 0 to 86,399,999,999
  kTimezoneUtc = 54,  ///< datetime.timezone.utc
  kTimezone = 55,     ///< offset in microseconds; 1 if a name follows
  kZoneInfo = 56,     ///< key, such as "Europe/Paris"

  kDecimal = 60,   ///< as text
  kFraction = 61,  ///< numerator, denominator
  kUuid = 62,      ///< most significant byte first
  kPath = 63,      ///< 0 Path, 1 PurePosixPath, 2 PureWindowsPath; text
  kRange = 64,     ///< start, stop, step
  kSlice = 65,     ///< start, stop, step

  kArray = 70,        ///< an array
  kNumpyScalar = 71,  ///< element type, then the element's bytes; with type 0, its size (L) comes before them
  kDType = 72,        ///< element type
  kMaskedArray = 73,  ///< data (array), mask (array or false), fill value (none for the default), 1 if the mask is hard
  kTensor = 74,       ///< flags 1 requires_grad, 2 is a Parameter
  kCapnp = 75,        ///< a Cap'n Proto message: the id of its root's type, its n segments
  /// layout 0 COO, 1 CSR, 2 CSC, 3 BSR, 4 BSC; flags 1 coalesced, 2 requires_grad; shape (tuple of int); its n tensors:
  /// indices and values of COO, otherwise compressed indices, plain indices and values
  kSparseTensor = 76,
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
