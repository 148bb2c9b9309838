#include "shmtree/base/kind.h"

#include "format/grammar.h"

namespace shmtree {

std::string_view name_of(Kind kind) noexcept {
  const format::KindRow* row = format::row_of(kind);
  return row ? row->name : "unknown";
}

std::string_view name_of(DType dtype) noexcept {
  constexpr const char* kNames[] = {
      "other",      "bool",     "int8",          "uint8",       "int16",           "uint16",          "int32",
      "uint32",     "int64",    "uint64",        "float16",     "float32",         "float64",         "complex64",
      "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
      "complex32"};
  static_assert(std::size(kNames) == kMaxDType + 1);
  return static_cast<std::uint8_t>(dtype) <= kMaxDType ? kNames[static_cast<std::uint8_t>(dtype)] : "unknown";
}

}  // namespace shmtree
