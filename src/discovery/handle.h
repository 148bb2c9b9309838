// A handle stands for a channel's end, an arena or a shared array in a pickle. The receiving process opens the object
// with it.
//
// Thread safety: values and free functions; any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "memory/arena.h"
#include "platform/other_process.h"

namespace shmtree::discovery {

struct Handle {
  unsigned char uuid[16]{};
  std::int32_t pid = 0;  // A process that has the arena open, and the number of the arena's descriptor in it.
  std::int32_t fd = -1;
  std::uint64_t block = 0;     // Packed BlockRef of a channel or an array; 0 for an arena.
  std::uint64_t transfer = 0;  // Number of the transfer (memory/transfers.h). 0: the object is not in transit.
  std::string name{};  // Path of the name (Name::path()), or empty. A process that attaches adds itself to that file.
};

// Returns a handle of `arena` that leads to this process.
Handle handle_of(const memory::Arena& arena);

std::string encode(const Handle& handle);
// Decodes a handle. Code::kIncompatible for one of another version, Code::kInvalid for bytes that are not a handle.
Result<Handle> decode(std::span<const std::byte> bytes);

// Resources that a process inherits from the parent that starts it: the arena's descriptor and a participant slot.
struct Inheritance {
  platform::UniqueFd arena{};
  memory::ReservedSlot slot{};
};

// Opens the arena of a handle. Tries in this order: an arena that this process has open, an inherited descriptor, the
// process that made the handle, and any other process that has the arena open.
//   Code::kNotFound      no living process of this user has it open
//   Code::kUnavailable   the system refuses access to its descriptor
//   Code::kIncompatible  the file is not an arena of this version
Result<std::shared_ptr<memory::Arena>> open_arena(const Handle& handle, Inheritance inheritance = {});

// Opens the arena behind descriptor `fd` of process `pid`, if it is the arena `uuid`. Code::kNotFound if it is not;
// other errors as above.
Result<std::shared_ptr<memory::Arena>> open_arena_of(int pid, int fd, const unsigned char uuid[16]);

// Opens the arena through any process of this user that has it open, which it finds by a scan. Returns `otherwise` if
// there is none; Code::kIncompatible if it is of another version.
Result<std::shared_ptr<memory::Arena>> open_arena_of_any_process(const unsigned char uuid[16], Error otherwise);

// Opens the arena's file through a descriptor of another process, without attaching to the arena. Code::kNotFound if
// the descriptor refers to another file by now.
Result<platform::UniqueFd> open_file_of(int pid, int fd, const unsigned char uuid[16], platform::Access access);

}  // namespace shmtree::discovery
