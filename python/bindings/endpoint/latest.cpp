// _core.LatestBase: publishes and reads the newest version of a value.
#include <memory>
#include <utility>

#include "bindings/bind.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/guarded.h"
#include "bindings/endpoint/frames.h"
#include "bindings/endpoint/make_object.h"
#include "bindings/endpoint/outgoing_object.h"
#include "bindings/endpoint/ring_end.h"
#include "bindings/objects/frame.h"
#include "channel/wake_hub.h"
#include "endpoint/copy_policy.h"
#include "endpoint/plain_messages.h"
#include "endpoint/publish.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using broadcast::Ring;
using latest::Held;
using latest::Store;
using memory::Arena;
using platform::Deadline;

namespace {

struct LatestEnd : RingEnd<LatestEnd, Store> {
  static constexpr const char* kName = "Latest";
  static constexpr const char* kRefuser = "this Latest";
};

PyObject* publish_object(LatestEnd* self, Store& store, PyObject* object, Deadline deadline, bool move) {
  RingHooks hooks(self);
  const platform::WaitContext wait{deadline, &hooks, &self->spin};
  const auto version_or_raise = [&](const Result<std::uint64_t>& version) {
    return version ? PyLong_FromUnsignedLongLong(*version) : hooks.raise(version.error());
  };
  if (is_frame(object)) {
    if (!may_go(self, object, {.allow_pickle = self->allow_pickle})) return nullptr;
    return version_or_raise(endpoint::publish(store, endpoint::WholeFrame(frame_bytes(object)), wait));
  }
  OutgoingObject message(*store.arena(), move ? Lending::kMove : Lending::kOwn);
  if (!message.encode(self, object, {.allow_pickle = self->allow_pickle})) return nullptr;
  return version_or_raise(endpoint::publish(store, message, wait));
}

PyObject* publish(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<3> kSignature{"publish", {"obj", "timeout", "move"}, 2, 1};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int move = truth_of(given[2], 0);
  Deadline deadline;
  if (move < 0 || !parse_deadline(nullptr, given[1], &deadline)) return nullptr;
  return LatestEnd::with_open(
      self, [&](Store& store) { return publish_object(LatestEnd::of(self), store, given[0], deadline, move == 1); });
}

// Returns (version, value).
PyObject* decoded(const LatestEnd* self, const Held& held, const Store& store, CopyPolicy copy) {
  const std::span<const std::byte> frame(held.block.data(), held.bytes);
  const CopyPolicy policy = endpoint::copy_policy_of_published(copy, store, true);
  Retry retry = Retry::kNever;
  PyObject* value = decode_published(*store.arena(), frame, held.block, policy, self->allow_pickle, &retry);
  return value ? Py_BuildValue("(KN)", static_cast<unsigned long long>(held.version), value) : nullptr;
}

PyObject* version_at(const LatestEnd* self, Store& store, std::uint64_t version, CopyPolicy copy) {
  const auto held = store.at(version);
  if (held) return decoded(self, *held, store, copy);
  if (held.code() != Code::kNotFound) return raise(held.error());
  PyErr_SetString(PyExc_KeyError, held.error().message.c_str());
  return nullptr;
}

PyObject* newest_version(LatestEnd* self, Store& store, std::uint64_t newer_than, Deadline deadline, CopyPolicy copy) {
  RingHooks hooks(self);
  const Status newer = store.wait_for_newer(newer_than, {deadline, &hooks, &self->spin});
  if (!newer) return hooks.raise(newer.error());
  const auto held = store.newest(newer_than);
  return held ? decoded(self, *held, store, copy) : hooks.raise(held.error());
}

PyObject* get_version(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<4> kSignature{"get", {"newer_than", "timeout", "version", "copy"}, 2, 0};
  PyObject* given[4];
  std::uint64_t newer_than = 0, version = 0;
  Deadline deadline;
  CopyPolicy copy = CopyPolicy::kAuto;
  if (!take_arguments(kSignature, args, nargs, keywords, given) ||
      (given[0] && !parse_natural(given[0], "newer_than", &newer_than)) ||
      !parse_deadline(nullptr, given[1], &deadline) || !parse_copy_policy(given[3], &copy)) {
    return nullptr;
  }
  const bool is_exact = given[2] && given[2] != Py_None;
  if (is_exact && !parse_natural(given[2], "version", &version)) return nullptr;
  LatestEnd* const end = LatestEnd::of(self);
  return LatestEnd::with_open(self, [&](Store& store) {
    return is_exact ? version_at(end, store, version, copy) : newest_version(end, store, newer_than, deadline, copy);
  });
}

// Returns (version, frame) of the next version after `given` if it is still there, else of the newest one. Waits for 1
// ms although the caller polls: before the first version, a process that never waits counts as a publisher, so that the
// stream would not end.
PyObject* frame_after(PyObject* self, PyObject* given) {
  const unsigned long long known = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred()) return nullptr;
  return LatestEnd::with_open(self, [&](Store& store) -> PyObject* {
    RingHooks hooks(as_end(self));
    const Status newer = store.wait_for_newer(known, {Deadline::after_ns(1'000'000), &hooks});
    if (!newer) return hooks.raise(newer.error());
    auto held = store.at(known + 1);
    if (!held) held = store.newest(known);
    if (!held) return hooks.raise(held.error());
    return published_frame(*store.arena(), held->version, {held->block.data(), held->bytes}, held->block);
  });
}

PyObject* latest_stats(PyObject* self, PyObject*) {
  return LatestEnd::with_open(self, [&](Store& store) {
    const Store::Retained kept = store.retained();
    return new_reference_from([&] {
      return py::dict("version"_a = store.version(), "history"_a = store.history(), "versions"_a = kept.versions,
                      "bytes"_a = kept.bytes, "publishers"_a = store.publishers(),
                      "pickled"_a = as_end(self)->pickled.load());
    });
  });
}

// Arguments: the version that the caller has, hub.
PyObject* await_newer(PyObject* self, PyObject* args) {
  unsigned long long known = 0;
  PyObject* hub = nullptr;
  if (!PyArg_ParseTuple(args, "KO", &known, &hub)) return nullptr;
  const auto store = LatestEnd::of(self)->port.part();
  if (!store) Py_RETURN_TRUE;
  channel::WakeHub* const to = hub_of(hub);
  if (!to) return nullptr;
  const auto is_there = store->await_newer(known, to->address());
  return is_there ? PyBool_FromLong(*is_there) : raise(is_there.error());
}

PyObject* is_newer(PyObject* self, PyObject* given) {
  const unsigned long long known = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred()) return nullptr;
  const auto store = LatestEnd::of(self)->port.part();
  return PyBool_FromLong(!store || store->is_newer(known));
}

// Arguments: store, allow_pickle, name.
PyObject* attach_latest(PyObject* self, PyObject* args) {
  PyObject *given = nullptr, *name = nullptr;
  int allow_pickle = 0;
  if (!PyArg_ParseTuple(args, "OpO", &given, &allow_pickle, &name)) return nullptr;
  return new_reference_from([&]() -> py::object {
    auto store = py::handle(given).cast<std::shared_ptr<Store>>();
    const bool allowed = allow_pickle != 0 && store->allows_pickle();
    LatestEnd::of(self)->attach(std::move(store), allowed, name);
    return py::none();
  });
}

PyObject* get_store(PyObject* self, void*) {
  const auto store = LatestEnd::of(self)->open();
  return store ? new_reference_from([&] { return py::cast(store); }) : nullptr;
}

py::tuple make_latest(py::handle history, std::optional<std::string> name, std::shared_ptr<Arena> arena,
                      py::handle allow_pickle, py::handle exist_ok) {
  const auto request =
      object_request(discovery::NamedKind::kLatest, std::move(name), std::move(arena), allow_pickle, exist_ok);
  latest::Options options{.allow_pickle = request.allows_pickle()};
  check(parse_natural(history.ptr(), "history", &options.history));
  return make_published<Store>(request, options);
}

const PyMethodDef kLatestMethods[] = {
    {"publish", as_method<publish>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"get", as_method<get_version>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_attach", as_method<attach_latest>(), METH_VARARGS, nullptr},
    {"_get_frame", as_method<frame_after>(), METH_O, nullptr},
    {"_stats", as_method<latest_stats>(), METH_NOARGS, nullptr},
    {"_name_to_get", reading_method<LatestEnd, &Ring::name>(), METH_NOARGS, nullptr},
    {"_await_newer", as_method<await_newer>(), METH_VARARGS, nullptr},
    {"_is_newer", as_method<is_newer>(), METH_O, nullptr},
};

const PyGetSetDef kLatestAttributes[] = {
    {"_name", guarded<name_of_end<LatestEnd>>, nullptr, nullptr, nullptr},
    {"_shared", guarded<get_store>, nullptr, nullptr, nullptr},
    {"version", reading_attribute<LatestEnd, &Store::version>(), nullptr, nullptr, nullptr},
    {"history", reading_attribute<LatestEnd, &Store::history>(), nullptr, nullptr, nullptr},
};

}  // namespace

void bind_latest_store(py::module_& module) {
  py::class_<Store, std::shared_ptr<Store>>(module, "LatestStore", plain_class())
      .def_static(
          "open",
          [](const std::shared_ptr<Arena>& arena, std::uint64_t block) {
            GilHooks hooks;
            return unwrap(Store::open(arena, memory::unpack(block), {Deadline(), &hooks}));
          },
          "arena"_a, "block"_a)
      .def_property_readonly("arena", [](const Store& store) { return store.arena(); })
      .def_property_readonly("block", [](const Store& store) { return memory::pack(store.block()); })
      .def("progress", [](const Store& store) { return progress_of(*store.ring()); });
  module.def("make_latest", &make_latest, "history"_a = 0, "name"_a = py::none(), "arena"_a = py::none(),
             "allow_pickle"_a = py::none(), "exist_ok"_a = false);
}

bool init_latest(PyObject* module) {
  return add_end_type(module, {"shmtree._core.LatestBase",
                               sizeof(LatestEnd),
                               guarded<LatestEnd::make>,
                               {publishing_methods(), kLatestMethods},
                               {kLatestAttributes}});
}

}  // namespace shmtree::python
