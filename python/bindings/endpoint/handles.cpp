// Handles: the pickled form of an end, an arena or a shared array.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/codec/portable.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "discovery/handle.h"
#include "endpoint/message_transfers.h"
#include "memory/transfers.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using discovery::Handle;
using memory::Arena;

namespace {

py::bytes make_handle(const Arena& arena, std::uint64_t block, std::uint64_t transfer, const std::string& name) {
  if (PortableScope::is_portable()) {
    refuse_local("handle");
    throw py::error_already_set();
  }
  Handle handle = discovery::handle_of(arena);
  handle.block = block;
  handle.transfer = transfer;
  handle.name = name;
  return py::bytes(discovery::encode(handle));
}

// Begins the transfer of a block that this process holds, or of the whole arena if `block` is 0.
std::uint64_t begin_transfer(const std::shared_ptr<Arena>& arena, std::uint64_t block, const endpoint::Name* name) {
  if (PortableScope::is_portable()) {
    refuse_local("handle");
    throw py::error_already_set();
  }
  return unwrap(without_gil([&] { return endpoint::MessageTransfers::begin(arena, block, name); }));
}

void end_transfer(Arena& arena, std::uint64_t block, std::uint64_t number, endpoint::Name* name) {
  without_gil([&] { endpoint::end_transfer(arena, block, number, name); });
}

// Returns (arena, block, number of the transfer, name, pid of the process that made the handle). The arena takes over
// the descriptors that the parent left to this process; -1 stands for none.
py::tuple open_handle(const std::string& bytes, int arena_fd, int lock_fd, memory::Identity identity) {
  const Handle handle = unwrap(discovery::decode(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  discovery::Inheritance inheritance{platform::UniqueFd(arena_fd), {identity, platform::UniqueFd(lock_fd)}};
  auto arena = without_gil([&] { return discovery::open_arena(handle, std::move(inheritance)); });
  return py::make_tuple(unwrap(std::move(arena)), handle.block, handle.transfer, handle.name, handle.pid);
}

// Returns the arena if this process has attached to it already, else None.
std::shared_ptr<Arena> find_arena(const std::string& uuid) {
  return uuid.size() == 16 ? Arena::find(reinterpret_cast<const unsigned char*>(uuid.data())) : nullptr;
}

// Opens the arena through any process of this user that is attached to it. Raises FileNotFoundError if there is none.
std::shared_ptr<Arena> open_arena(const std::string& uuid) {
  if (uuid.size() != 16)
    throw py::value_error("the uuid of an arena must have 16 bytes; this has " + std::to_string(uuid.size()));
  const auto* bytes = reinterpret_cast<const unsigned char*>(uuid.data());
  Error none{.code = Code::kNotFound, .message = "no process of this user is attached to that arena"};
  return unwrap(without_gil([&] { return discovery::open_arena_of_any_process(bytes, std::move(none)); }));
}

}  // namespace

void bind_handles(py::module_& module) {
  module.def("make_handle", &make_handle, "arena"_a, "block"_a = 0, "transfer"_a = 0, "name"_a = "");
  module.def("open_handle", &open_handle, "handle"_a, "arena_fd"_a = -1, "lock_fd"_a = -1, "identity"_a = 0);
  module.def("begin_transfer", &begin_transfer, "arena"_a, "block"_a, "name"_a);
  module.def("end_transfer", &end_transfer, "arena"_a, "block"_a, "number"_a, "name"_a);
  module.def("sweep_transfers", [] { without_gil(memory::sweep_transfers); });
  module.def("find_arena", &find_arena, "uuid"_a);
  module.def("open_arena", &open_arena, "uuid"_a);
}

}  // namespace shmtree::python
