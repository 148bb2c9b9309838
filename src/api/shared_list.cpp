// Implements SharedList of the public API.
#include "shmtree/shared_list.h"

#include "shared_list/list_reader.h"
#include "shmtree/frame.h"

namespace shmtree {

using shared_list::ListReader;

Result<SharedList> SharedList::load(const std::string& path) {
  return or_out_of_memory([&]() -> Result<SharedList> {
    auto reader = ListReader::open(path);
    if (!reader) return std::move(reader).error();
    return SharedList(std::move(*reader));
  });
}

std::uint64_t SharedList::size() const noexcept {
  return reader_ == nullptr ? 0 : reader_->size();
}
std::uint64_t SharedList::bytes() const noexcept {
  return reader_ == nullptr ? 0 : reader_->bytes().size();
}

Result<Held<std::span<const std::byte>>> SharedList::frame(std::uint64_t number) const {
  return or_out_of_memory([&]() -> Result<Held<std::span<const std::byte>>> {
    if (number >= size()) {
      const std::string list = reader_ == nullptr ? "SharedList of 0 items" : reader_->description();
      return Error{.code = Code::kInvalid, .message = "there is no item " + std::to_string(number) + " in a " + list};
    }
    auto found = reader_->frame(number);
    if (found) return Held<std::span<const std::byte>>(*found, reader_);
    Error error = std::move(found).error();
    error.message += " (" + reader_->description() + ")";
    return error;
  });
}

Result<Item> SharedList::at(std::uint64_t number) const {
  const auto found = frame(number);
  if (!found) return found.error();
  auto item = unpack(*found, reader_);
  if (item) return item;
  return or_out_of_memory([&]() -> Result<Item> {
    Error error = item.error();
    error.message = "item " + std::to_string(number) + ": " + error.message + " (" + reader_->description() + ")";
    return error;
  });
}

}  // namespace shmtree
