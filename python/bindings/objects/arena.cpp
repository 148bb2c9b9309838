// _core.Arena: shared memory in which channels are stored.
#include "memory/arena.h"

#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/deaths.h"
#include "platform/machine.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using memory::Arena;

namespace {

std::shared_ptr<Arena> create(std::uint64_t max_bytes, std::uint64_t prefault, bool huge_pages) {
  return unwrap(without_gil([&] { return Arena::create({max_bytes, prefault, huge_pages}); }));
}

py::dict stats(Arena& arena) {
  notice_deaths(arena, 0);
  const memory::ArenaStats stats = arena.inspector().stats();
  return py::dict("max_bytes"_a = stats.max_bytes, "committed_bytes"_a = stats.committed_bytes,
                  "used_bytes"_a = stats.used_bytes, "held_bytes"_a = stats.held_bytes, "blocks"_a = stats.blocks,
                  "participants"_a = stats.participants, "reconciles"_a = stats.reconciles);
}

py::list holders(Arena& arena) {
  notice_deaths(arena, 0);
  py::list out;
  for (const memory::HolderInfo& info : arena.inspector().holders()) {
    out.append(py::make_tuple(memory::pack(info.block), info.bytes, info.pid, static_cast<double>(info.held_ns) / 1e9));
  }
  return out;
}

py::object new_array_in(const std::shared_ptr<Arena>& arena, py::handle shape, py::handle dtype,
                        const std::string& order, bool zeroed, bool gift) {
  GilHooks hooks;
  return own(new_array(arena, {shape.ptr(), dtype.ptr(), order, zeroed, gift}, hooks));
}

py::object new_shared_array_in(const std::shared_ptr<Arena>& arena, py::handle shape, py::handle dtype) {
  GilHooks hooks;
  return own(new_shared_array(arena, shape.ptr(), dtype.ptr(), hooks));
}

py::object open_array(const std::shared_ptr<Arena>& arena, std::uint64_t block, py::handle shape, py::handle dtype,
                      const std::string& order) {
  GilHooks hooks;
  auto lease =
      arena->hold_existing(memory::unpack(block), memory::BlockKind::kArray, {platform::Deadline::never(), &hooks});
  if (!lease && lease.code() == Code::kIncompatible) throw py::value_error("this block of the arena is not an array");
  return own(array_on(unwrap(std::move(lease)), shape.ptr(), dtype.ptr(), order));
}

std::uint64_t block_of(py::handle array) {
  if (PyArray_Check(array.ptr())) {
    const ViewOwner* owner = view_owner_of(as_array(array.ptr()));
    const HeldBlock* held = owner ? held_block(*owner) : nullptr;
    if (held) return memory::pack(held->block.ref());
  }
  throw py::value_error("this array is not in an arena");
}

void show_block_of(py::handle array) {
  if (!PyArray_Check(array.ptr()) || !show(as_array(array.ptr())))
    throw py::value_error("this array was not made in an arena by this process, or put() gave it away");
}

py::tuple reserve_slot(Arena& arena) {
  auto slot = unwrap(arena.reconciler().reserve_slot());
  return py::make_tuple(slot.identity, slot.lock.release());
}

// Frees the slot of a child after its start was abandoned, unless the child has taken the slot over after all.
void abandon_slot(Arena& arena, memory::Identity identity, int lock) {
  memory::ReservedSlot slot{identity, platform::UniqueFd(lock)};
  const memory::Participant& theirs = arena.participants().slot(memory::slot_of(identity));
  if (theirs.pid.load(std::memory_order_relaxed) == platform::process_id())
    arena.participants().abandon(std::move(slot));
}

void hold_for(Arena& arena, memory::Identity child, std::uint64_t block) {
  arena.holders().hold_for(memory::unpack(block), child);
}

bool is_shared(Arena& arena, std::uint64_t block) {
  notice_deaths(arena, kLongPollIntervalNs);
  GilHooks hooks;
  return unwrap(arena.holders().is_shared(memory::unpack(block), {platform::Deadline::never(), &hooks}));
}

void set_pinned(Arena& arena, bool pinned) {
  GilHooks hooks;
  const Status done = arena.allocator().set_pinned(pinned, {platform::Deadline::never(), &hooks});
  if (done) return;
  raise(done.error());
  throw py::error_already_set();
}

}  // namespace

void bind_arena(py::module_& module) {
  py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena", plain_class())
      .def_static("create", &create, "max_bytes"_a, "prefault"_a, "huge_pages"_a)
      .def_property_readonly(
          "uuid", [](const Arena& arena) { return py::bytes(reinterpret_cast<const char*>(arena.uuid()), 16); })
      .def_property_readonly("fd", [](const Arena& arena) { return unwrap(arena.checked_fd()); })
      .def_property_readonly("max_bytes", [](Arena& arena) { return arena.pool().max_bytes(); })
      .def_property_readonly("held_bytes", [](const Arena& arena) { return arena.pool().held_bytes(); })
      .def("stats", &stats)
      .def("holders", &holders)
      .def(
          "trim", [](Arena& arena) { return arena.allocator().trim(); }, py::call_guard<WithoutGil>())
      .def_property_readonly("identity", [](Arena& arena) { return unwrap(arena.identity()); })
      .def(
          "is_alive", [](Arena& arena, memory::Identity identity) { return arena.participants().is_alive(identity); },
          "identity"_a)
      .def("is_shared", &is_shared, "block"_a)
      .def_property(
          "spin", [](Arena& arena) { return own(spin_seconds(arena.spin())); },
          [](Arena& arena, py::handle seconds) {
            if (!set_spin_seconds(arena.spin(), seconds.ptr())) throw py::error_already_set();
          })
      .def("detach", [](Arena& arena) { arena.participants().detach(); })
      .def("set_pinned", &set_pinned, "pinned"_a)
      .def_property_readonly("is_pinned_here", [](Arena& arena) { return arena.participants().is_pinned_here(); })
      .def("new_array", &new_array_in, "shape"_a, "dtype"_a, "order"_a, "zeroed"_a, "gift"_a = false)
      .def("new_shared_array", &new_shared_array_in, "shape"_a, "dtype"_a)
      .def("open_array", &open_array, "block"_a, "shape"_a, "dtype"_a, "order"_a)
      .def("reserve_slot", &reserve_slot)
      .def("abandon_slot", &abandon_slot, "identity"_a, "lock"_a)
      .def(
          "note_started",
          [](Arena& arena, memory::Identity identity, int pid) { arena.participants().note_started(identity, pid); },
          "identity"_a, "pid"_a)
      .def("hold_for", &hold_for, "identity"_a, "block"_a);
  module.def("block_of", &block_of, "array"_a);
  module.def("show", &show_block_of, "array"_a);
  module.def(
      "set_pin_callback", [](py::handle callback) { set_pin_callback(callback.ptr()); }, "callback"_a);
}

}  // namespace shmtree::python
