#include "shared_list/list_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "platform/file.h"
#include "platform/group_file.h"
#include "platform/other_version.h"
#include "shared_list/layout.h"

namespace shmtree::shared_list {
namespace {

Error corrupt(const std::string& text) {
  return Error{.code = Code::kCorrupt, .message = text};
}

// Returns the text of an error about a file that does not begin like a list.
Error not_a_list(const std::string& what, const ListHeader& header) {
  const bool is_frame = std::memcmp(header.magic, "SHMT", 4) == 0;
  return corrupt(what + " is not a shared list" + (is_frame ? "; it is one frame, which shmtree.load reads" : ""));
}

// Checks a header, of which `size` bytes are in the file, against the size of the file.
Status check(const ListHeader& header, std::uint64_t size, const std::string& what) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return not_a_list(what, header);
  const std::string has = ": it has " + std::to_string(size) + " bytes, and ";
  if (size < sizeof header) {
    return corrupt(what + " is truncated" + has + "the header alone has " + std::to_string(sizeof header));
  }
  if (header.version != kVersion) return platform::other_version(what + " has version", header.version, kVersion);
  if (header.bytes != size) {
    const char* const how = header.bytes > size ? " is truncated" : " has bytes after its end";
    return corrupt(what + how + has + "its header says " + std::to_string(header.bytes));
  }
  const bool is_inside = header.index_offset >= sizeof header && header.index_offset < size;
  const bool is_aligned = header.index_offset % kIndexAlignment == 0;
  const bool has_zeros =
      std::all_of(std::begin(header.zeros), std::end(header.zeros), [](std::byte each) { return each == std::byte{}; });
  // The division cannot overflow, as count + 1 and its product could.
  const std::uint64_t rest = is_inside ? size - header.index_offset : 0;
  const bool has_index = rest >= 8 && rest % 8 == 0 && header.count == rest / 8 - 1;
  if (header.header_bytes == sizeof header && is_aligned && has_index && has_zeros) return success();
  return corrupt(what + " has an invalid header: " + std::to_string(header.count) + " items, index at " +
                 std::to_string(header.index_offset) + ", " + std::to_string(size) + " bytes");
}

}  // namespace

Result<std::shared_ptr<const ListReader>> ListReader::open(const std::string& path) {
  auto fd = platform::open_for_reading(path);
  if (!fd) return std::move(fd).error();
  if (Status is_file = platform::check_regular_file(fd->get(), path); !is_file) return std::move(is_file).error();
  return map(fd->get(), "'" + path + "'");
}

// Reads the header from the file, not from the mapping: a file that becomes shorter meanwhile is then an error, and not
// a SIGBUS.
Result<std::shared_ptr<const ListReader>> ListReader::map(int fd, const std::string& what, std::uint64_t offset) {
  const auto file_bytes = platform::file_size(fd);
  if (!file_bytes) return file_bytes.error();
  if (offset % platform::page_size() != 0 || offset > *file_bytes) {
    return corrupt(what + " cannot be at " + std::to_string(offset) + " in " + std::to_string(*file_bytes) + " bytes");
  }
  std::uint64_t size = *file_bytes - offset;
  ListHeader header{};
  if (!platform::read_at(fd, offset, &header, std::min<std::uint64_t>(size, sizeof header))) {
    if (errno != 0) return platform::os_error("read " + what, errno);
    return corrupt(what + " was truncated while it was opened");
  }
  if (offset != 0) size = std::min(size, header.bytes);  // other lists follow
  if (Status sound = check(header, size, what); !sound) return std::move(sound).error();
  const std::shared_ptr<ListReader> reader(new ListReader(header));
  if (what.starts_with('\'') || what.starts_with('"')) reader->where_ = " in " + what;
  const auto mapped = platform::map_for_reading(fd, size, offset);
  if (!mapped) {
    Error error = mapped.error();
    error.message = what + ": " + error.message;
    return error;
  }
  reader->bytes_ = {*mapped, static_cast<std::size_t>(size)};
  return std::shared_ptr<const ListReader>(reader);
}

ListReader::ListReader(const ListHeader& header) noexcept : count_(header.count), index_offset_(header.index_offset) {
  std::copy(std::begin(header.identity), std::end(header.identity), identity_.begin());
}

ListReader::~ListReader() {
  if (!bytes_.empty()) platform::unmap(bytes_.data(), bytes_.size());
}

std::string ListReader::description() const {
  return "SharedList of " + std::to_string(count_) + " items" + where_;
}

std::uint64_t ListReader::entry(std::uint64_t number) const noexcept {
  std::uint64_t offset = 0;
  std::memcpy(&offset, bytes_.data() + index_offset_ + 8 * number, sizeof offset);
  return offset;
}

Result<std::span<const std::byte>> ListReader::frame(std::uint64_t number) const {
  const std::uint64_t start = entry(number), end = entry(number + 1);
  const bool is_inside = start >= sizeof(ListHeader) && end <= index_offset_ && start <= end;
  if (is_inside && end - start >= kFrameHeaderBytes && start % kFrameAlignment == 0) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes_.data() + start + kFrameSizeOffset, sizeof size);
    size &= kFrameSizeMask;
    if (size <= end - start) return bytes_.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(size));
  }
  return corrupt("item " + std::to_string(number) + ": the index has invalid offsets: " + std::to_string(start) +
                 " and " + std::to_string(end));
}

}  // namespace shmtree::shared_list
