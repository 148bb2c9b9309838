// _core.LatestBase: publishes and reads the newest version of a value.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "bindings/bind.h"
#include "bindings/cpython/fast_method.h"
#include "bindings/endpoint/published.h"
#include "channel/wake_hub.h"
#include "endpoint/copy_policy.h"
#include "endpoint/published.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using latest::Held;
using latest::Store;
using memory::Arena;

namespace {

// The C++ part of a Latest object.
class LatestEnd : public Closable<Store> {
 public:
  LatestEnd(const std::shared_ptr<Store>& store, bool allows)
      : Closable(store, "Latest"), allow_pickle(allows && store->allows_pickle()) {}
  const bool allow_pickle;
  std::atomic<std::uint64_t> pickled{0};  // versions that needed a pickle
};

std::uint64_t publish(LatestEnd& self, py::handle object, py::handle timeout, bool move) {
  const auto store = self.open();
  ClosableHooks hooks(self, py::handle(), timeout);
  Published value(*store->arena(), object.ptr(), self.allow_pickle, move, "this Latest", self.pickled);
  return hooks.done(endpoint::publish(*store, value, hooks.wait()));
}

py::tuple decoded(const Held& held, const Store& store, py::handle copy, bool allow_pickle) {
  const std::span<const std::byte> frame(held.block.data(), held.bytes);
  const CopyPolicy policy = endpoint::copy_policy_of_published(copy_policy_of(copy), store, true);
  return py::make_tuple(held.version, decode_published(*store.arena(), frame, held.block, policy, allow_pickle));
}

// Arguments: newer_than, timeout, copy.
py::tuple get_latest(const LatestEnd& self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) throw py::type_error("_get() takes three arguments");
  const std::uint64_t newer_than = PyLong_AsUnsignedLongLong(arguments[0]);
  if (PyErr_Occurred()) throw py::error_already_set();
  const auto store = self.open();
  ClosableHooks hooks(self, py::handle(), arguments[1]);
  hooks.done(store->wait_for_newer(newer_than, hooks.wait()));
  return decoded(hooks.done(store->newest(newer_than)), *store, arguments[2], self.allow_pickle);
}

py::bytes name_of_wakes(const LatestEnd& self) {
  const platform::WakeText name = self.open()->ring()->name();
  return {name.data(), name.size()};
}

py::int_ version(const LatestEnd& self, void*) {
  return self.open()->version();
}

py::object at(const LatestEnd& self, std::uint64_t version, py::handle copy) {
  const auto store = self.open();
  auto held = store->at(version);
  if (!held && held.code() == Code::kNotFound) throw py::key_error(held.error().message);
  return decoded(unwrap(std::move(held)), *store, copy, self.allow_pickle);
}

// Returns (version, frame) of the next version if it is still there, else of the newest one. Waits for a millisecond:
// before the first version, a process counts as a publisher unless it waits for a version.
py::tuple frame_after(const LatestEnd& self, std::uint64_t known) {
  const auto store = self.open();
  ClosableHooks hooks(self, py::handle(), py::float_(0.001));
  hooks.done(store->wait_for_newer(known, hooks.wait()));
  auto held = store->at(known + 1);
  if (!held) held = store->newest(known);
  const Held one = hooks.done(std::move(held));
  return published_frame(*store->arena(), one.version, {one.block.data(), one.bytes}, one.block);
}

py::dict latest_stats(const LatestEnd& self) {
  const auto store = self.open();
  const Store::Kept kept = store->kept();
  return py::dict("version"_a = store->version(), "history"_a = store->history(), "versions"_a = kept.versions,
                  "bytes"_a = kept.bytes, "publishers"_a = store->publishers(), "pickled"_a = self.pickled.load());
}

}  // namespace

void bind_latest(py::module_& module) {
  py::class_<Store, std::shared_ptr<Store>>(module, "LatestStore", plain_class())
      .def_static(
          "create",
          [](std::shared_ptr<Arena> arena, std::uint64_t history, bool allow_pickle) {
            GilHooks hooks;
            return unwrap(Store::create(std::move(arena), {history, allow_pickle}, {platform::Deadline(), &hooks}));
          },
          "arena"_a, "history"_a, "allow_pickle"_a)
      .def_static(
          "open",
          [](const std::shared_ptr<Arena>& arena, std::uint64_t block) {
            GilHooks hooks;
            return unwrap(Store::open(arena, memory::unpack(block), {platform::Deadline(), &hooks}));
          },
          "arena"_a, "block"_a)
      .def_property_readonly("arena", [](const Store& store) { return store.arena(); })
      .def_property_readonly("block", [](const Store& store) { return memory::pack(store.block()); })
      .def(
          "check_options",
          [](const Store& store, std::uint64_t history, bool allow_pickle) {
            unwrap(store.check_options({history, allow_pickle}));
          },
          "history"_a, "allow_pickle"_a)
      .def("progress", [](const Store& store) { return progress_of(*store.ring()); });
  py::class_<LatestEnd> end(module, "LatestBase", plain_class());
  end.def(py::init<std::shared_ptr<Store>, bool>(), "store"_a, "allow_pickle"_a)
      .def_property_readonly("_store", [](const LatestEnd& self) { return self.open(); })
      .def_property_readonly("history", [](const LatestEnd& self) { return self.open()->history(); })
      .def_property_readonly("closed", [](const LatestEnd& self) { return self.is_closed(); })
      .def_property_readonly("allow_pickle", [](const LatestEnd& self) { return self.allow_pickle; })
      .def("_publish", &publish, "obj"_a, "timeout"_a, "move"_a)
      .def("_at", &at, "version"_a, "copy"_a)
      .def("_get_frame", &frame_after, "known"_a)
      .def("_stats", &latest_stats)
      .def("_name_to_get", &name_of_wakes)
      .def(
          "_await_newer",
          [](const LatestEnd& self, std::uint64_t known, const channel::WakeHub& hub) {
            return self.is_closed() || unwrap(self.open()->await_newer(known, hub.address()));
          },
          "known"_a, "hub"_a)
      .def(
          "_is_newer",
          [](const LatestEnd& self, std::uint64_t known) { return self.is_closed() || self.open()->is_newer(known); },
          "known"_a)
      .def("close",
           [](LatestEnd& self) {
             if (const auto last = self.close()) last->close();
           })
      .def("_fail", &fail_publisher<LatestEnd>, "exit_code"_a);
  add_fast_method<LatestEnd, get_latest>(end, "_get");
  add_fast_property<LatestEnd, version>(end, "version");
}

}  // namespace shmtree::python
