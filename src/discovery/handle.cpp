#include "discovery/handle.h"

#include <cstring>
#include <utility>

#include "platform/file.h"
#include "platform/machine.h"
#include "platform/other_version.h"

namespace shmtree::discovery {

using memory::Arena;

namespace {

// The encoded handle: magic, the fields of Handle in order, the length of the name, and the name.
constexpr char kMagic[8] = {'s', 'm', 't', 'h', 'a', 'n', 'd', '1'};
constexpr std::size_t kFixedBytes = sizeof kMagic + 16 + 4 + 4 + 8 + 8 + 4;
constexpr std::size_t kMaxHandleBytes = 4096;

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  void take(void* out, std::size_t count) noexcept {
    std::memcpy(out, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
  }
  std::span<const std::byte> rest() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

Handle handle_of(const Arena& arena) {
  Handle handle;
  std::memcpy(handle.uuid, arena.uuid(), sizeof handle.uuid);
  handle.pid = platform::process_id();
  handle.fd = arena.fd();
  return handle;
}

std::string encode(const Handle& handle) {
  std::string out(kMagic, sizeof kMagic);
  append(out, handle.uuid);
  append(out, handle.pid);
  append(out, handle.fd);
  append(out, handle.block);
  append(out, handle.transfer);
  append(out, static_cast<std::uint32_t>(handle.name.size()));
  return out + handle.name;
}

Result<Handle> decode(std::span<const std::byte> bytes) {
  const Error broken{Code::kInvalid, "these bytes are not a shmtree handle"};
  if (bytes.size() < kFixedBytes) return broken;
  Cursor cursor(bytes);
  char magic[sizeof kMagic];
  cursor.take(magic, sizeof magic);
  const auto version = platform::version_of(magic, kMagic);
  if (!version) return broken;
  const auto own = platform::version_of(kMagic, kMagic);
  if (version != own) return platform::other_version("the handle has version", *version, *own);
  Handle handle;
  std::uint32_t name_bytes = 0;
  cursor.take(handle.uuid, sizeof handle.uuid);
  cursor.take(&handle.pid, sizeof handle.pid);
  cursor.take(&handle.fd, sizeof handle.fd);
  cursor.take(&handle.block, sizeof handle.block);
  cursor.take(&handle.transfer, sizeof handle.transfer);
  cursor.take(&name_bytes, sizeof name_bytes);
  if (name_bytes > kMaxHandleBytes || cursor.rest().size() != name_bytes) return broken;
  handle.name.assign(reinterpret_cast<const char*>(cursor.rest().data()), name_bytes);
  return handle;
}

namespace {

bool is_arena(int fd, const unsigned char uuid[16]) noexcept {
  unsigned char found[16];
  std::uint64_t magic = 0;
  return platform::read_at(fd, offsetof(memory::ArenaHeader, magic), &magic, sizeof magic) && magic == memory::kMagic &&
         platform::read_at(fd, offsetof(memory::ArenaHeader, uuid), found, sizeof found) &&
         std::memcmp(found, uuid, sizeof found) == 0;
}

}  // namespace

Result<platform::UniqueFd> open_file_of(int pid, int fd, const unsigned char uuid[16], platform::Access access) {
  auto opened = platform::open_from_process(pid, fd, access);
  if (!opened || is_arena(opened->get(), uuid)) return opened;
  return Error{Code::kNotFound, "process " + std::to_string(pid) + " has released the arena or has ended"};
}

Result<std::shared_ptr<Arena>> open_arena_of(int pid, int fd, const unsigned char uuid[16]) {
  auto opened = open_file_of(pid, fd, uuid, platform::Access::kReadAndWrite);
  if (!opened) return std::move(opened).error();
  return Arena::attach(std::move(*opened));
}

Result<std::shared_ptr<Arena>> open_arena_of_any_process(const unsigned char uuid[16], Error otherwise) {
  Result<std::shared_ptr<Arena>> found = std::move(otherwise);
  Status searched = platform::find_memory_file(memory::kFileName, [&](const platform::OpenFile& one) {
    auto opened = open_arena_of(one.pid, one.fd, uuid);
    if (opened || opened.code() == Code::kIncompatible) found = std::move(opened);
    return found.ok();
  });
  if (!searched) return std::move(searched).error();
  if (!found && found.code() == Code::kNotFound) {
    return Error{Code::kNotFound, found.error().message + "; no other process of this user is attached to it"};
  }
  return found;
}

// The process that made the handle may have closed the arena, as long as another process has it open.
Result<std::shared_ptr<Arena>> open_arena(const Handle& handle, Inheritance inheritance) {
  if (auto attached = Arena::find(handle.uuid)) {
    attached->participants().abandon(std::move(inheritance.slot));
    return attached;
  }
  if (!inheritance.arena.valid()) {
    auto opened = open_arena_of(handle.pid, handle.fd, handle.uuid);
    if (opened || opened.code() == Code::kIncompatible) return opened;
    return open_arena_of_any_process(handle.uuid, std::move(opened).error());
  }
  platform::set_close_on_exec(inheritance.arena.get());
  return Arena::attach(std::move(inheritance.arena), inheritance.slot.lock.valid() ? &inheritance.slot : nullptr);
}

}  // namespace shmtree::discovery
