// Implements Item: conversion of nodes to numbers.
#include <bit>
#include <cstring>

#include "shmtree/item.h"
#include "value/tree.h"

namespace shmtree {

using value::Node;
using value::node_of;

namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// A number of any native type, converted to the widest type of its sort.
struct Number {
  enum class Sort : std::uint8_t { kNone, kBool, kInt, kUInt, kFloat, kComplex } sort = Sort::kNone;
  std::int64_t i = 0;
  std::uint64_t u = 0;
  double f = 0;
  double imaginary = 0;
};

Number number_of(std::int64_t value) {
  return {.sort = Number::Sort::kInt, .i = value};
}
Number number_of(std::uint64_t value) {
  return {.sort = Number::Sort::kUInt, .u = value};
}
Number number_of(double value) {
  return {.sort = Number::Sort::kFloat, .f = value};
}
Number number_of(double real, double imaginary) {
  return {.sort = Number::Sort::kComplex, .f = real, .imaginary = imaginary};
}

// Converts IEEE half precision. (A bfloat16 is the upper half of a float.)
double half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * fraction * 0x1p-14;
  if (exponent == 31) {
    return sign * (fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN());
  }
  return sign * (1 + fraction) * std::bit_cast<double>(std::uint64_t(exponent - 15 + 1023) << 52);
}

Number element_of(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool: return {.sort = Number::Sort::kBool, .i = load<std::uint8_t>(at) != 0};
    case DType::kInt8: return number_of(std::int64_t{load<std::int8_t>(at)});
    case DType::kInt16: return number_of(std::int64_t{load<std::int16_t>(at)});
    case DType::kInt32: return number_of(std::int64_t{load<std::int32_t>(at)});
    case DType::kInt64: return number_of(load<std::int64_t>(at));
    case DType::kUInt8: return number_of(std::uint64_t{load<std::uint8_t>(at)});
    case DType::kUInt16: return number_of(std::uint64_t{load<std::uint16_t>(at)});
    case DType::kUInt32: return number_of(std::uint64_t{load<std::uint32_t>(at)});
    case DType::kUInt64: return number_of(load<std::uint64_t>(at));
    case DType::kFloat16: return number_of(half(load<std::uint16_t>(at)));
    case DType::kBFloat16: return number_of(double{std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(at)} << 16)});
    case DType::kFloat32: return number_of(double{load<float>(at)});
    case DType::kFloat64: return number_of(load<double>(at));
    case DType::kComplex64: return number_of(double{load<float>(at)}, double{load<float>(at + 4)});
    case DType::kComplex128: return number_of(load<double>(at), load<double>(at + 8));
    default: return {};
  }
}

const std::byte* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

// Converts little-endian two's complement. Returns kNone unless it fits in 64 bits, signed or unsigned.
Number big_number(std::string_view bytes) {
  if (bytes.empty()) return {};
  const bool negative = static_cast<std::int8_t>(bytes.back()) < 0;
  const char fill = static_cast<char>(negative ? -1 : 0);
  while (bytes.size() > 8 && bytes.back() == fill) bytes.remove_suffix(1);
  if (bytes.size() > 8) return {};
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  if (!negative) return number_of(value);
  return static_cast<std::int64_t>(value) < 0 ? number_of(static_cast<std::int64_t>(value)) : Number{};
}

// Returns the number that as<...>() converts: a native number, a NumPy scalar, or an array without dimensions.
Number number_in(const value::Tree& tree, const Node& node) {
  switch (node.kind) {
    case Kind::kFalse:
    case Kind::kTrue: return {.sort = Number::Sort::kBool, .i = node.kind == Kind::kTrue};
    case Kind::kInt: return number_of(tree.ints[node.number]);
    case Kind::kBigInt: return big_number(tree.texts[node.text]);
    case Kind::kFloat: return number_of(tree.floats[node.number]);
    case Kind::kComplex: return number_of(tree.floats[node.number], tree.floats[node.number + 1]);
    case Kind::kNumpyScalar:
      return node.dtype == DType::kOther ? Number{} : element_of(node.dtype, bytes_of(tree.texts[node.text]));
    case Kind::kArray:
    case Kind::kTensor: {
      const value::Array& array = tree.arrays[node.array];
      return array.ndim == 0 && array.elements == 1 && array.data != nullptr ? element_of(array.dtype, array.data)
                                                                             : Number{};
    }
    default: return {};
  }
}

}  // namespace

Result<bool> Item::to_bool() const {
  const Node& node = node_of(tree_, node_);
  if (tree_ != nullptr) {
    const Number number = number_in(*tree_, node);
    if (number.sort == Number::Sort::kBool) return number.i != 0;
  }
  return mismatch("bool");
}

// Text that an error shows for a number with more bits than any type.
constexpr const char* kTooManyBits = "one of more than 64 bits";

Result<std::int64_t> Item::to_int(std::size_t bytes) const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kInt) return number.i;
  if (number.sort == Number::Sort::kUInt) {
    if (number.u > INT64_MAX) return out_of_range(std::to_string(number.u), bytes, true);
    return static_cast<std::int64_t>(number.u);
  }
  return node.kind == Kind::kBigInt ? out_of_range(kTooManyBits, bytes, true) : mismatch("int");
}

Result<std::uint64_t> Item::to_uint(std::size_t bytes) const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kUInt) return number.u;
  if (number.sort == Number::Sort::kInt) {
    if (number.i < 0) return out_of_range(std::to_string(number.i), bytes, false);
    return static_cast<std::uint64_t>(number.i);
  }
  return node.kind == Kind::kBigInt ? out_of_range(kTooManyBits, bytes, false) : mismatch("int");
}

Result<double> Item::to_double() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kFloat) return number.f;
  if (number.sort == Number::Sort::kInt) return static_cast<double>(number.i);
  if (number.sort == Number::Sort::kUInt) return static_cast<double>(number.u);
  return mismatch("float");
}

Result<std::complex<double>> Item::to_complex() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kComplex) return std::complex<double>(number.f, number.imaginary);
  Result<double> real = to_double();
  if (real.ok()) return std::complex<double>(*real);
  return mismatch("complex");
}

}  // namespace shmtree
