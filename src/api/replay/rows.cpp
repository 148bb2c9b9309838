#include "api/replay/rows.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <type_traits>
#include <utility>

#include "platform/errors.h"
#include "value/array_layout.h"

namespace shmtree::api {

using replay::Spec;
using replay::SpecLeaf;
using replay::SpecPart;

const char* word_of(const Value& value) {
  constexpr const char* kWords[] = {"None",  "a bool",   "an int", "an int",  "a float", "a complex",      "a string",
                                    "bytes", "an array", "a list", "a tuple", "a dict",  "a received item"};
  return kWords[value.variant().index()];
}

namespace {

// The path to a leaf. Only errors make its text.
struct Path {
  const Path* up = nullptr;
  const SpecPart* in = nullptr;
  std::size_t at = 0;
  const char* root = "row";

  std::string text() const {
    if (up == nullptr) return root;
    if (in->form != SpecPart::Form::kDict) return up->text() + "[" + std::to_string(at) + "]";
    const SpecPart::Key& key = in->keys[at];
    return up->text() + "[" + (key.is_text ? "\"" + key.bytes + "\"" : "a key that only Python has") + "]";
  }
};

std::string shown(std::string_view dtype, std::span<const std::int64_t> shape) {
  std::string text(dtype);
  text += ", shape (";
  for (const std::int64_t size : shape) text += std::to_string(size) + ",";
  return text + ")";
}

std::string dtype_name(const SpecLeaf& leaf) {
  const DType dtype = replay::dtype_of(leaf.dtype);
  return dtype == DType::kOther ? leaf.dtype : std::string(name_of(dtype));
}

constexpr auto same_size = [](std::int64_t a, std::uint64_t b) { return std::cmp_equal(a, b); };

std::vector<std::int64_t> shape_of(const SpecLeaf& leaf) {
  return {leaf.shape.begin(), leaf.shape.end()};
}

// --- The pytree

const Value* find(const Dict& dict, const SpecPart::Key& key, std::size_t expected_at) {
  const auto& entries = dict.entries();
  if (!key.is_text) return nullptr;
  if (expected_at < entries.size() && entries[expected_at].key == key.bytes) return &entries[expected_at].value;
  const auto found = std::ranges::find(entries, key.bytes, &Entry::key);
  return found == entries.end() ? nullptr : &found->value;
}

Status too_many(const SpecPart& part, const Dict& dict, const Path& path) {
  for (const Entry& entry : dict.entries()) {
    const auto is_it = [&](const SpecPart::Key& key) { return key.is_text && key.bytes == entry.key; };
    if (std::ranges::any_of(part.keys, is_it)) continue;
    return invalid(path.text() + "[\"" + entry.key + "\"] is not a leaf of the buffer's rows");
  }
  return success();
}

template <class Take>
Status walk_sequence(const SpecPart& part, const std::vector<Value>& items, const Path& path, const Take& take);

// Calls take(leaf, value, way) for each leaf.
template <class Take>
Status walk(const SpecPart& part, const Value& value, const Path& path, const Take& take) {
  if (part.form == SpecPart::Form::kLeaf) return take(part.leaf, value, path);
  if (part.form != SpecPart::Form::kDict) {
    if (const auto* list = std::get_if<List>(&value.variant())) return walk_sequence(part, list->items(), path, take);
    if (const auto* tuple = std::get_if<Tuple>(&value.variant()))
      return walk_sequence(part, tuple->items(), path, take);
    return invalid(path.text() + " is " + word_of(value) + "; the rows of the buffer have a sequence there");
  }
  const auto* dict = std::get_if<Dict>(&value.variant());
  if (dict == nullptr) {
    return invalid(path.text() + " is " + word_of(value) + "; the rows of the buffer have a dict there");
  }
  for (std::size_t i = 0; i < part.parts.size(); ++i) {
    const Path next{&path, &part, i};
    const Value* const found = find(*dict, part.keys[i], i);
    if (found == nullptr) return invalid(next.text() + " is missing");
    if (Status walked = walk(part.parts[i], *found, next, take); !walked) return walked;
  }
  return dict->size() == part.parts.size() ? success() : too_many(part, *dict, path);
}

template <class Take>
Status walk_sequence(const SpecPart& part, const std::vector<Value>& items, const Path& path, const Take& take) {
  if (items.size() != part.parts.size()) {
    return invalid(path.text() + " has " + std::to_string(items.size()) + " items; it must have " +
                   std::to_string(part.parts.size()) + ", as in the rows of the buffer");
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (Status walked = walk(part.parts[i], items[i], Path{&path, &part, i}, take); !walked) return walked;
  }
  return success();
}

// --- Numbers

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;

// Returns false if the number does not fit: a float for an int, or an int that is too large.
template <class To, class From>
bool stage(From from, std::byte* out) {
  To number{};
  if constexpr (std::is_same_v<From, bool>) {
    number = To(from ? 1 : 0);
  } else if constexpr (std::is_same_v<To, bool> || (is_complex<From> && !is_complex<To>)) {
    return false;
  } else if constexpr (std::is_integral_v<To>) {
    if constexpr (!std::is_integral_v<From>) return false;
    if constexpr (std::is_integral_v<From>) {
      if (!std::in_range<To>(from)) return false;
      number = static_cast<To>(from);
    }
  } else if constexpr (is_complex<To>) {
    using Part = typename To::value_type;
    if constexpr (is_complex<From>) number = To(static_cast<Part>(from.real()), static_cast<Part>(from.imag()));
    if constexpr (!is_complex<From>) number = To(static_cast<Part>(from));
  } else {
    number = static_cast<To>(from);
  }
  std::memcpy(out, &number, sizeof number);
  return true;
}

template <class From>
bool stage_as(DType dtype, From from, std::byte* out) {
  switch (dtype) {
    case DType::kBool: return stage<bool>(from, out);
    case DType::kInt8: return stage<std::int8_t>(from, out);
    case DType::kUInt8: return stage<std::uint8_t>(from, out);
    case DType::kInt16: return stage<std::int16_t>(from, out);
    case DType::kUInt16: return stage<std::uint16_t>(from, out);
    case DType::kInt32: return stage<std::int32_t>(from, out);
    case DType::kUInt32: return stage<std::uint32_t>(from, out);
    case DType::kInt64: return stage<std::int64_t>(from, out);
    case DType::kUInt64: return stage<std::uint64_t>(from, out);
    case DType::kFloat32: return stage<float>(from, out);
    case DType::kFloat64: return stage<double>(from, out);
    case DType::kComplex64: return stage<std::complex<float>>(from, out);
    case DType::kComplex128: return stage<std::complex<double>>(from, out);
    default: return false;
  }
}

// Returns false if the value is not a number, or does not fit.
bool stage_value(DType dtype, const Value& value, std::byte* out) {
  return std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || is_complex<Held>) return stage_as(dtype, held, out);
        return false;
      },
      value.variant());
}

// --- Arrays

using Copies = std::vector<std::unique_ptr<std::byte[]>>;

// Returns the address of the elements in C order. Copies them if they have another order.
Result<const std::byte*> elements_of(const ArrayRef& array, const Path& path, Copies& copies) {
  auto layout = value::layout_of(array);
  if (!layout) return invalid(path.text() + ": " + layout.error().message);
  if (layout->empty || layout->order == format::Order::kC) return static_cast<const std::byte*>(array.data);
  ArrayView view{.dtype = array.dtype, .shape = array.shape, .strides = array.strides};
  view.data = static_cast<const std::byte*>(array.data);
  view.item_bytes = item_bytes(array.dtype);
  view.elements = 1;
  for (const std::int64_t size : array.shape) view.elements *= static_cast<std::size_t>(size);
  copies.push_back(std::make_unique<std::byte[]>(view.elements * view.item_bytes));
  view.copy_to(copies.back().get());
  return copies.back().get();
}

Error other(const Path& path, const Value& value, const SpecLeaf& leaf, const char* more) {
  std::string found = word_of(value);
  if (const auto* array = std::get_if<ArrayRef>(&value.variant())) found = shown(name_of(array->dtype), array->shape);
  return invalid(path.text() + " is " + found + "; the rows of the buffer have " +
                 shown(dtype_name(leaf), shape_of(leaf)) + more);
}

}  // namespace

// --- Rows

Status ReplayRows::read(const Spec& spec, const SpecPart& part, const char* root, const Value& value, RowForm form) {
  const std::size_t front = form == RowForm::kMany ? 1 : 0;
  at_.assign(spec.leaves.size() + 1, {});
  numbers_.resize(form == RowForm::kOne ? spec.leaves.size() : 0);
  bool has_rows = false;
  rows_ = 1;
  return walk(part, value, Path{.root = root}, [&](std::size_t leaf, const Value& found, const Path& path) -> Status {
    const SpecLeaf& wanted = spec.leaves[leaf];
    const DType dtype = replay::dtype_of(wanted.dtype);
    const auto* array = std::get_if<ArrayRef>(&found.variant());
    if (array == nullptr && form == RowForm::kOne) {
      at_[leaf] = numbers_[leaf].bytes;
      if (wanted.shape.empty() && stage_value(dtype, found, numbers_[leaf].bytes)) return success();
      return other(path, found, wanted, wanted.shape.empty() ? ", which cannot hold it" : "");
    }
    const bool is_it = array != nullptr && array->dtype == dtype && dtype != DType::kOther &&
                       array->shape.size() >= front &&
                       std::ranges::equal(std::span(array->shape).subspan(front), wanted.shape, same_size);
    if (!is_it) return other(path, found, wanted, form == RowForm::kMany ? " for each row" : "");
    auto elements = elements_of(*array, path, copies_);
    if (!elements) return std::move(elements).error();
    const auto rows = form == RowForm::kMany ? static_cast<std::size_t>(array->shape[0]) : 1;
    if (std::exchange(has_rows, true) && rows != rows_) {
      return invalid(path.text() + " has " + std::to_string(rows) + " rows; the leaves before it have " +
                     std::to_string(rows_));
    }
    rows_ = rows;
    at_[leaf] = {*elements, wanted.bytes()};
    return success();
  });
}

}  // namespace shmtree::api
