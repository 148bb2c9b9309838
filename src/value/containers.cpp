// What containers.h and fields.h have in common for all types.
#include <string>

#include "shmtree/fields.h"
#include "value/tree.h"

namespace shmtree {

namespace detail {

Error error_at(std::string_view way, Error error) {
  const bool goes_on = error.message.starts_with('[');
  error.message = std::string(way) + (goes_on ? "" : ": ") + error.message;
  return error;
}
Error error_at(std::size_t position, Error error) {
  return error_at(std::string("[") + std::to_string(position) + "]", std::move(error));
}
Error error_at_key(std::string_view key, Error error) {
  return error_at(std::string("[\"") + std::string(key.substr(0, 100)) + "\"]", std::move(error));
}

Status check_size(const Item& item, std::size_t wanted) {
  if (!item.is_sequence()) return item.mismatch("sequence");
  if (item.size() == wanted) return success();
  return Error{.code = Code::kInvalid,
               .message = "The " + std::string(name_of(item.kind())) + " has " + std::to_string(item.size()) +
                          " items and not " + std::to_string(wanted) + "."};
}

Result<ArrayView> one_dimensional(const Item& item, DType dtype) {
  Result<ArrayView> array = item.try_view();
  if (!array.ok()) return array;
  if (array->dtype != dtype) return other_elements(array->dtype, dtype);
  if (array->shape.size() != 1) return other_dimensions(array->shape.size(), 1);
  return array;
}

Result<std::string> text_key(const Item& item, std::size_t position) {
  if (!value::has_key_nodes(item.kind())) return std::string(item.at(position).key());
  const Item key = item.key_at(position);
  if (key.kind() == Kind::kStr || key.kind() == Kind::kLongStr) return key.try_as<std::string>();
  return Error{.code = Code::kInvalid,
               .message = "The key " + std::to_string(position) + " of the dict is a " +
                          std::string(name_of(key.kind())) + ", which is no str."};
}

Error other_elements(DType found, DType wanted) {
  return Error{.code = Code::kInvalid,
               .message = "The array has elements of " + std::string(name_of(found)) + " and not of " +
                          std::string(name_of(wanted)) + "."};
}
Error other_dimensions(std::size_t found, std::size_t wanted) {
  return Error{.code = Code::kInvalid,
               .message = "The array has " + std::to_string(found) + (found == 1 ? " dimension" : " dimensions") +
                          " and not " + std::to_string(wanted) + "."};
}

Error missing_field(const Item& item, std::string_view type, std::string_view name) {
  return Error{.code = Code::kNotFound,
               .message = "There is no key \"" + std::string(name) + "\" in a " + std::string(name_of(item.kind())) +
                          " of " + std::to_string(item.size()) + ", which " + std::string(type) + " needs."};
}
Error error_at_field(std::string_view type, std::string_view name, Error error) {
  return error_at(std::string(type) + "::" + std::string(name), std::move(error));
}

}  // namespace detail

Result<Bytes> ItemAs<Bytes>::make(const Item& item) {
  const auto bytes = item.try_as<std::span<const std::byte>>();
  if (!bytes.ok()) return bytes.error();
  return Bytes{std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())};
}

}  // namespace shmtree
