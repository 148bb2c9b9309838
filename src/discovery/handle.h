// What travels in place of a channel's end, an arena or a shared array, to a process that then finds the real thing.
//
// Thread safety: values and free functions; call them from any thread.
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
  std::int32_t pid = 0;  // a process that has the arena, and its descriptor there
  std::int32_t fd = -1;
  std::uint64_t block = 0;     // packed BlockRef of a channel or an array; 0 for an arena
  std::uint64_t transfer = 0;  // number of the transfer (memory/transfers.h), 0 for none
  std::string name{};          // of the arena: whoever takes part in it adds itself there; empty for most
};

// A handle of `arena` as this process has it.
Handle handle_of(const memory::Arena& arena);

std::string encode(const Handle& handle);
// Code::kIncompatible for a handle of another version, Code::kInvalid for bytes that are not a handle.
Result<Handle> decode(std::span<const std::byte> bytes);

// What a parent leaves to a process that it starts: the arena's descriptor and a slot in it.
struct Inheritance {
  platform::UniqueFd arena{};
  memory::ReservedSlot slot{};
};

// The arena that a handle names: the one this process has, else the inherited one, else by way of the process that made
// the handle, else by way of any other that has it.
//   Code::kNotFound      no living process of this user has it
//   Code::kUnavailable   the system does not let us have its descriptor
//   Code::kIncompatible  what is there is not an arena of this version
Result<std::shared_ptr<memory::Arena>> open_arena(const Handle& handle, Inheritance inheritance = {});

// The arena behind descriptor `fd` of process `pid`, provided it is that one. Code::kNotFound when it is not; other
// errors as above.
Result<std::shared_ptr<memory::Arena>> open_arena_of(int pid, int fd, const unsigned char uuid[16]);

// Opens the arena through any process of this user that has it open; scans them until one does. `otherwise` if there is
// none; Code::kIncompatible if it is of another version.
Result<std::shared_ptr<memory::Arena>> open_arena_of_anyone(const unsigned char uuid[16], Error otherwise);

// Its file by way of such a descriptor, without taking part in it. Code::kNotFound where that leads elsewhere by now.
Result<platform::UniqueFd> open_file_of(int pid, int fd, const unsigned char uuid[16], platform::Access access);

}  // namespace shmtree::discovery
