#include "shmtree/kind.h"

namespace shmtree {

std::string_view name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kInvalid: break;
    case Kind::kNone: return "none";
    case Kind::kFalse: return "false";
    case Kind::kTrue: return "true";
    case Kind::kInt: return "int";
    case Kind::kBigInt: return "bigint";
    case Kind::kFloat: return "float";
    case Kind::kComplex: return "complex";
    case Kind::kStr: return "str";
    case Kind::kLongStr: return "long_str";
    case Kind::kBytes: return "bytes";
    case Kind::kLongBytes: return "long_bytes";
    case Kind::kByteArray: return "bytearray";
    case Kind::kLongByteArray: return "long_bytearray";
    case Kind::kMemoryView: return "memoryview";
    case Kind::kEllipsis: return "ellipsis";
    case Kind::kNotImplemented: return "not_implemented";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kIntList: return "int_list";
    case Kind::kFloatList: return "float_list";
    case Kind::kSet: return "set";
    case Kind::kFrozenSet: return "frozenset";
    case Kind::kDeque: return "deque";
    case Kind::kDict: return "dict";
    case Kind::kStrDict: return "str_dict";
    case Kind::kOrderedDict: return "ordered_dict";
    case Kind::kStrOrderedDict: return "str_ordered_dict";
    case Kind::kDefaultDict: return "defaultdict";
    case Kind::kCounter: return "counter";
    case Kind::kNamedTuple: return "namedtuple";
    case Kind::kDataclass: return "dataclass";
    case Kind::kEnum: return "enum";
    case Kind::kEnumValue: return "enum_value";
    case Kind::kGlobal: return "global";
    case Kind::kRegistered: return "registered";
    case Kind::kPickle: return "pickle";
    case Kind::kLongPickle: return "long_pickle";
    case Kind::kDate: return "date";
    case Kind::kTime: return "time";
    case Kind::kDateTime: return "datetime";
    case Kind::kTimeDelta: return "timedelta";
    case Kind::kTimezoneUtc: return "timezone_utc";
    case Kind::kTimezone: return "timezone";
    case Kind::kZoneInfo: return "zoneinfo";
    case Kind::kDecimal: return "decimal";
    case Kind::kFraction: return "fraction";
    case Kind::kUuid: return "uuid";
    case Kind::kPath: return "path";
    case Kind::kRange: return "range";
    case Kind::kSlice: return "slice";
    case Kind::kArray: return "array";
    case Kind::kNumpyScalar: return "numpy_scalar";
    case Kind::kDType: return "dtype";
    case Kind::kMaskedArray: return "masked_array";
    case Kind::kTensor: return "tensor";
  }
  return "unknown";
}

std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kOther: return "other";
    case DType::kBool: return "bool";
    case DType::kInt8: return "int8";
    case DType::kUInt8: return "uint8";
    case DType::kInt16: return "int16";
    case DType::kUInt16: return "uint16";
    case DType::kInt32: return "int32";
    case DType::kUInt32: return "uint32";
    case DType::kInt64: return "int64";
    case DType::kUInt64: return "uint64";
    case DType::kFloat16: return "float16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kComplex64: return "complex64";
    case DType::kComplex128: return "complex128";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat8E4M3FN: return "float8_e4m3fn";
    case DType::kFloat8E5M2: return "float8_e5m2";
    case DType::kFloat8E4M3FNUZ: return "float8_e4m3fnuz";
    case DType::kFloat8E5M2FNUZ: return "float8_e5m2fnuz";
    case DType::kFloat8E8M0FNU: return "float8_e8m0fnu";
    case DType::kComplex32: return "complex32";
  }
  return "unknown";
}

}  // namespace shmtree
