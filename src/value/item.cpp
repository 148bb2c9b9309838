// Item: looking into a received tree.
#include "shmtree/item.h"

#include <bit>
#include <cstring>

#include "value/tree.h"

namespace shmtree {

using value::Node;

namespace {

Error mismatch(Kind kind, std::string_view wanted) {
  return Error{.code = Code::kInvalid,
               .message = "The item is a " + std::string(name_of(kind)) + ", which is no " + std::string(wanted) + "."};
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// A number of any native type, as wide as its sort.
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

// IEEE half precision; bfloat16 is the upper half of a float.
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

// Little-endian two's complement, when it fits 64 bits with or without a sign.
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

// What as<...>() can convert: native numbers, NumPy scalars, arrays of one element without dimensions.
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

std::string_view text_of(const value::Array& array) {
  return {reinterpret_cast<const char*>(array.data), static_cast<std::size_t>(array.elements)};
}

const Node kNoNode{};

const Node& node_of(const std::shared_ptr<const value::Tree>& tree, std::uint32_t node) {
  return tree == nullptr ? kNoNode : tree->at(node);
}

}  // namespace

Item::Item(std::shared_ptr<const value::Tree> tree, std::uint32_t node) noexcept
    : tree_(std::move(tree)), node_(node) {}

Kind Item::kind() const noexcept {
  return node_of(tree_, node_).kind;
}

bool Item::is_dict() const noexcept {
  return value::has_key_nodes(kind()) || value::has_named_entries(kind());
}

bool Item::is_sequence() const noexcept {
  switch (kind()) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kIntList:
    case Kind::kFloatList:
    case Kind::kSet:
    case Kind::kFrozenSet:
    case Kind::kDeque:
    case Kind::kNamedTuple: return true;
    default: return false;
  }
}

bool Item::is_array() const noexcept {
  return try_view().ok();
}

std::size_t Item::size() const noexcept {
  const Node& node = node_of(tree_, node_);
  return value::has_key_nodes(node.kind) ? (node.child_count - node.lead) / 2 : node.child_count;
}

Item Item::at(std::size_t position) const {
  if (position >= size()) {
    throw BadResult({.code = Code::kNotFound,
                     .message = "There is no item " + std::to_string(position) + " in a " +
                                std::string(name_of(kind())) + " of " + std::to_string(size()) + "."});
  }
  const Node& node = tree_->at(node_);
  const std::size_t child = value::has_key_nodes(node.kind) ? node.lead + 2 * position + 1 : position;
  return Item(tree_, tree_->children[node.child + child]);
}

Item Item::key_at(std::size_t position) const {
  if (position >= size() || !value::has_key_nodes(kind())) {
    throw BadResult({.code = Code::kNotFound,
                     .message = "There is no key node " + std::to_string(position) + " in a " +
                                std::string(name_of(kind())) + " of " + std::to_string(size()) + "."});
  }
  const Node& node = tree_->at(node_);
  return Item(tree_, tree_->children[node.child + node.lead + 2 * position]);
}

std::optional<Item> Item::find(std::string_view key) const noexcept {
  const Node& node = node_of(tree_, node_);
  if (value::has_named_entries(node.kind)) {
    for (std::uint32_t i = 0; i < node.child_count; ++i) {
      const std::uint32_t child = tree_->children[node.child + i];
      if (tree_->texts[tree_->at(child).key] == key) return Item(tree_, child);
    }
  } else if (value::has_key_nodes(node.kind)) {
    for (std::uint32_t i = node.lead; i + 1 < node.child_count; i += 2) {
      const Node& candidate = tree_->at(tree_->children[node.child + i]);
      if (candidate.kind == Kind::kStr && tree_->texts[candidate.text] == key) {
        return Item(tree_, tree_->children[node.child + i + 1]);
      }
      if (candidate.kind == Kind::kLongStr && text_of(tree_->arrays[candidate.array]) == key) {
        return Item(tree_, tree_->children[node.child + i + 1]);
      }
    }
  }
  return std::nullopt;
}

Item Item::operator[](std::string_view key) const {
  std::optional<Item> found = find(key);
  if (found) return *std::move(found);
  std::string message = "There is no key \"" + std::string(key.substr(0, 100)) + "\" in a " +
                        std::string(name_of(kind())) + " of " + std::to_string(size()) + ".";
  throw BadResult({.code = Code::kNotFound, .message = std::move(message)});
}

Item::Iterator Item::begin() const noexcept {
  return {*this, 0};
}
Item::Iterator Item::end() const noexcept {
  return {*this, size()};
}

std::vector<std::string_view> Item::keys() const {
  std::vector<std::string_view> found;
  if (!is_dict()) return found;
  found.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) {
    if (value::has_named_entries(kind())) {
      found.push_back(at(i).key());
    } else {
      Result<std::string_view> text = key_at(i).to_text();
      found.push_back(text.ok() ? *text : std::string_view());
    }
  }
  return found;
}

std::string_view Item::key() const noexcept {
  const Node& node = node_of(tree_, node_);
  return node.key == value::kNone ? std::string_view() : tree_->texts[node.key];
}

std::string_view Item::class_name() const noexcept {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kNamedTuple:
    case Kind::kDataclass:
    case Kind::kEnum:
    case Kind::kEnumValue:
    case Kind::kGlobal:
    case Kind::kRegistered: return tree_->texts[node.text];
    default: return {};
  }
}

std::string_view Item::member() const {
  if (kind() != Kind::kEnum) throw BadResult(mismatch(kind(), "enum"));
  return tree_->texts[tree_->at(node_).text + 1];
}

std::span<const std::int64_t> Item::ints() const noexcept {
  const Node& node = node_of(tree_, node_);
  const bool floats = node.kind == Kind::kFloat || node.kind == Kind::kComplex || node.kind == Kind::kFloatList;
  if (node.number_count == 0 || floats) return {};
  return {tree_->ints.data() + node.number, node.number_count};
}

std::span<const double> Item::floats() const noexcept {
  const Node& node = node_of(tree_, node_);
  const bool floats = node.kind == Kind::kFloat || node.kind == Kind::kComplex || node.kind == Kind::kFloatList;
  if (node.number_count == 0 || !floats) return {};
  return {tree_->floats.data() + node.number, node.number_count};
}

Result<bool> Item::to_bool() const {
  const Node& node = node_of(tree_, node_);
  if (tree_ != nullptr) {
    const Number number = number_in(*tree_, node);
    if (number.sort == Number::Sort::kBool) return number.i != 0;
  }
  return mismatch(node.kind, "bool");
}

Result<std::int64_t> Item::to_int() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kInt) return number.i;
  if (number.sort == Number::Sort::kUInt) {
    if (number.u > INT64_MAX) return out_of_range(std::to_string(number.u), 8);
    return static_cast<std::int64_t>(number.u);
  }
  return mismatch(node.kind, node.kind == Kind::kBigInt ? "integer of 64 bits" : "integer");
}

Result<std::uint64_t> Item::to_uint() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kUInt) return number.u;
  if (number.sort == Number::Sort::kInt) {
    if (number.i < 0) return out_of_range(std::to_string(number.i), 8);
    return static_cast<std::uint64_t>(number.i);
  }
  return mismatch(node.kind, node.kind == Kind::kBigInt ? "integer of 64 bits" : "integer");
}

Result<double> Item::to_double() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kFloat) return number.f;
  if (number.sort == Number::Sort::kInt) return static_cast<double>(number.i);
  if (number.sort == Number::Sort::kUInt) return static_cast<double>(number.u);
  return mismatch(node.kind, "real number");
}

Result<std::complex<double>> Item::to_complex() const {
  const Node& node = node_of(tree_, node_);
  const Number number = tree_ == nullptr ? Number{} : number_in(*tree_, node);
  if (number.sort == Number::Sort::kComplex) return std::complex<double>(number.f, number.imaginary);
  Result<double> real = to_double();
  if (real.ok()) return std::complex<double>(*real);
  return mismatch(node.kind, "number");
}

Result<std::string_view> Item::to_text() const {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kStr:
    case Kind::kDecimal:
    case Kind::kPath:
    case Kind::kZoneInfo: return tree_->texts[node.text];
    case Kind::kLongStr: return text_of(tree_->arrays[node.array]);
    default: return mismatch(node.kind, "text");
  }
}

Result<std::span<const std::byte>> Item::to_bytes() const {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kBytes:
    case Kind::kByteArray:
    case Kind::kBigInt:
    case Kind::kUuid:
    case Kind::kPickle: return std::as_bytes(std::span(tree_->texts[node.text]));
    case Kind::kLongBytes:
    case Kind::kLongByteArray:
    case Kind::kLongPickle: return std::as_bytes(std::span(text_of(tree_->arrays[node.array])));
    default: return mismatch(node.kind, "run of bytes");
  }
}

Result<ArrayView> Item::try_view() const {
  return or_out_of_memory([this] { return array_view(); });
}

Result<ArrayView> Item::array_view() const {
  const Node& node = node_of(tree_, node_);
  if (node.kind == Kind::kMemoryView) return at(0).try_view();
  if (node.kind != Kind::kArray && node.kind != Kind::kTensor) return mismatch(node.kind, "array");
  const value::Array& array = tree_->arrays[node.array];
  const std::int64_t* dims = tree_->dims.data() + array.dims;
  ArrayView view{.dtype = array.dtype,
                 .description = array.description,
                 .shape = {dims, array.ndim},
                 .strides = {dims + array.ndim, array.ndim},
                 .data = array.data,
                 .item_bytes = array.item_bytes,
                 .elements = array.elements,
                 .read_only = array.read_only,
                 .c_order = true};
  auto stride = static_cast<std::int64_t>(array.item_bytes);
  for (std::size_t i = array.ndim; i-- > 0 && array.elements != 0;) {
    if (view.shape[i] != 1 && view.strides[i] != stride) view.c_order = false;
    stride *= view.shape[i];
  }
  return view;
}

Result<ArrayView> Item::typed_view(DType dtype, std::size_t alignment, bool writable) const {
  Result<ArrayView> view = try_view();
  if (!view.ok()) return view;
  const auto refused = [](std::string message) { return Error{.code = Code::kInvalid, .message = std::move(message)}; };
  if (view->dtype != dtype) {
    return refused("The array has elements of " + std::string(name_of(view->dtype)) + " and not of " +
                   std::string(name_of(dtype)) + ".");
  }
  if (writable && view->read_only) return refused("The array is read-only: ask for elements that are const.");
  bool aligned = std::bit_cast<std::uintptr_t>(view->data) % alignment == 0;
  for (const std::int64_t stride : view->strides) {
    if (stride < 0) return refused("The array runs backwards (negative strides): read it through view().");
    aligned = aligned && stride % static_cast<std::int64_t>(view->item_bytes) == 0;
  }
  if (!aligned) return refused("The elements of the array are not aligned: read them through view().");
  return view;
}

Error Item::out_of_range(std::string number, std::size_t bytes) {
  return Error{.code = Code::kInvalid,
               .message = "The number " + number + " does not fit into the integer of " + std::to_string(bytes) +
                          " bytes that was asked for."};
}

Error Item::not_in_c_order() {
  return Error{.code = Code::kInvalid, .message = "The elements of the array are not one run in C order: use view()."};
}

}  // namespace shmtree
