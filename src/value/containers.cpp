// Parts of containers.h, fields.h and vocabulary.h that do not depend on a type.
#include <string>

#include "shmtree/fields.h"
#include "shmtree/vocabulary.h"
#include "value/tree.h"

namespace shmtree {

namespace detail {

namespace {

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

Error other_size(const Item& item, std::size_t wanted, std::size_t found) {
  return Error{.code = Code::kInvalid,
               .message = "expected " + counted(wanted, "item") + ", found " + value::with_article(item.kind()) +
                          " of " + std::to_string(found)};
}

Status check_size(const Item& item, std::size_t wanted) {
  if (!item.is_sequence()) return item.mismatch("sequence");
  if (item.size() == wanted) return success();
  return other_size(item, wanted, item.size());
}

Result<ArrayView> one_dimensional(const Item& item, DType dtype) {
  Result<ArrayView> array = item.try_view();
  if (!array.ok()) return array;
  if (array->dtype != dtype) return other_elements(array->dtype, dtype);
  if (array->shape.size() != 1) return other_dimensions(array->shape.size(), 1);
  return array;
}

Result<std::string_view> text_key(const Item& item, std::size_t position) {
  if (!value::has_key_nodes(item.kind())) return std::string_view(item.at(position).key());
  const Item key = item.key_at(position);
  if (key.kind() == Kind::kStr || key.kind() == Kind::kLongStr) return key.try_as<std::string_view>();
  return Error{.code = Code::kInvalid,
               .message = "key " + std::to_string(position) + " of the dict: expected string, found " +
                          std::string(value::word_of(key.kind()))};
}

Error other_elements(DType found, DType wanted) {
  return Error{.code = Code::kInvalid,
               .message = "expected an array of " + std::string(name_of(wanted)) + ", found one of " +
                          std::string(name_of(found))};
}
Error other_dimensions(std::size_t found, std::size_t wanted) {
  return Error{
      .code = Code::kInvalid,
      .message = "expected an array of " + counted(wanted, "dimension") + ", found one of " + std::to_string(found)};
}

Error missing_field(const Item& item, std::string_view type, std::string_view name) {
  return Error{.code = Code::kNotFound,
               .message = std::string(type) + " needs the key \"" + std::string(name) + "\", which is not in " +
                          value::with_article(item.kind()) + " of " + std::to_string(item.size())};
}

Result<double> seconds_of(const Item& item) {
  if (item.kind() != Kind::kTimeDelta) return item.try_as<double>();
  const auto parts = item.ints();  // days, microseconds
  return static_cast<double>(parts[0]) * 86'400 + static_cast<double>(parts[1]) * 1e-6;
}

}  // namespace detail

Result<Bytes> ItemAs<Bytes>::make(const Item& item) {
  const auto bytes = item.try_as<std::span<const std::byte>>();
  if (!bytes.ok()) return bytes.error();
  return Bytes{std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())};
}

}  // namespace shmtree
