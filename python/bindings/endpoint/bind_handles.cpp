// Handles: what an end, an arena or a shared array is pickled as.
#include <pybind11/pybind11.h>

#include <cstring>
#include <optional>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "discovery/handle.h"

namespace shmtree::python {

namespace py = pybind11;
using discovery::Handle;
using memory::Arena;

namespace {

py::bytes make_handle(const Arena& arena, std::uint64_t block, std::uint64_t grant, const std::string& name) {
  Handle handle = discovery::handle_of(arena);
  handle.block = block;
  handle.grant = grant;
  handle.name = name;
  return py::bytes(discovery::encode(handle));
}

// (arena, block, grant, name, pid of who made the handle). The descriptors, which a parent left to this process, become
// the arena's; -1 for none.
py::tuple open_handle(const std::string& bytes, int arena_fd, int lock_fd, memory::Identity identity) {
  const Handle handle = unwrap(discovery::decode(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  discovery::Inheritance inheritance{platform::UniqueFd(arena_fd), {identity, platform::UniqueFd(lock_fd)}};
  auto arena = [&] {
    const WithoutGil unlocked;
    return discovery::open_arena(handle, std::move(inheritance));
  }();
  return py::make_tuple(unwrap(std::move(arena)), handle.block, handle.grant, handle.name, handle.pid);
}

// The arena that this process has already, else None.
std::optional<std::shared_ptr<Arena>> find_arena(const std::string& uuid) {
  if (uuid.size() != 16) return std::nullopt;
  unsigned char bytes[16];
  std::memcpy(bytes, uuid.data(), sizeof bytes);
  auto arena = Arena::find(bytes);
  if (arena == nullptr) return std::nullopt;
  return arena;
}

}  // namespace

void bind_handles(py::module_& module) {
  module.def("make_handle", &make_handle, py::arg("arena"), py::arg("block") = 0, py::arg("grant") = 0,
             py::arg("name") = "");
  module.def(
      "open_handle",
      [](const py::bytes& handle, int arena_fd, int lock_fd, memory::Identity identity) {
        return open_handle(std::string(handle), arena_fd, lock_fd, identity);
      },
      py::arg("handle"), py::arg("arena_fd") = -1, py::arg("lock_fd") = -1, py::arg("identity") = 0);
  module.def(
      "find_arena",
      [](const py::bytes& uuid) -> py::object {
        auto arena = find_arena(std::string(uuid));
        return arena ? py::cast(*arena) : py::none();
      },
      py::arg("uuid"));
}

}  // namespace shmtree::python
