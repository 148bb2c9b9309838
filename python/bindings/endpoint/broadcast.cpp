// _core.BroadcastBase and its Ring: publishes messages that each subscriber receives.
#include <memory>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/endpoint/frames.h"
#include "bindings/endpoint/make_object.h"
#include "bindings/endpoint/outgoing_object.h"
#include "bindings/endpoint/put_methods.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/endpoint/subscriber.h"
#include "bindings/objects/deaths.h"
#include "bindings/objects/frame.h"
#include "broadcast/publisher.h"
#include "channel/wake_hub.h"
#include "endpoint/plain_messages.h"
#include "endpoint/publish.h"
#include "platform/clock.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using broadcast::Policy;
using broadcast::Publisher;
using broadcast::Ring;
using memory::Arena;
using platform::Deadline;

namespace {

struct BroadcastEnd : RingEnd<BroadcastEnd, Publisher> {
  static constexpr const char* kName = "Broadcast";
  static constexpr const char* kRefuser = "this Broadcast";

  StalledWait stalled_wait;

  // The functions of PutMethods and AckMethods.
  static PyObject* put(PyObject* self, PyObject* object, Deadline deadline, bool move);
  static PyObject* put_many(PyObject* self, PyObject* iterable, Deadline deadline);
  static PyObject* wait_for_acks(PyObject* self, std::optional<std::uint64_t> ticket, Deadline deadline);
};

// Hooks for a put that waits for subscribers. They warn of a subscriber that blocks the put and was never used.
class ReadersHooks final : public RingHooks {
 public:
  ReadersHooks(BroadcastEnd* self, const Ring& ring) noexcept
      : RingHooks(self), stalled_wait_(self->stalled_wait), ring_(ring) {}
  void before_block() noexcept override {
    if (since_ns_ == 0) since_ns_ = platform::monotonic_ns();
    RingHooks::before_block();
  }
  bool interrupted() noexcept override { return RingHooks::interrupted() || !check_for_unused(); }

  // Returns the result of a put: the ticket, or null with a Python error set.
  PyObject* ticket_or_raise(const Result<std::uint64_t>& ticket) const {
    return ticket ? PyLong_FromUnsignedLongLong(*ticket) : raise_waited(ticket.error());
  }
  PyObject* none_or_raise(const Status& status) const {
    if (!status) return raise_waited(status.error());
    Py_RETURN_NONE;
  }

 private:
  // Returns false if the warning was turned into an exception, which is set.
  bool check_for_unused() const noexcept try {
    if (since_ns_ == 0 || stalled_wait_.was_warned.load(std::memory_order_relaxed)) return true;
    const auto blocker = ring_.unused_blocker();
    if (!blocker) return stalled_wait_.waited_ns.store(0), true;
    const std::int64_t waited = count_stalled_wait(stalled_wait_, blocker->position, since_ns_);
    return waited == 0 ||
           without_unwinding([&] {
             return PyErr_WarnFormat(error_types().unused_end_warning, 1,
                                     "waited %lld s for a subscriber of a Broadcast that %s and never used: "
                                     "call close() on it in processes that do not use it",
                                     static_cast<long long>(waited / 1'000'000'000), blocker->process.c_str());
           }) == 0;
  } catch (const std::bad_alloc&) {  // the next check warns
    return true;
  }
  PyObject* raise_waited(const Error& error) const {
    const bool is_timeout = error.code == Code::kFull || error.code == Code::kTimeout;
    return is_timeout && !check_for_unused() ? nullptr : raise(error);
  }

  StalledWait& stalled_wait_;
  const Ring& ring_;
  std::int64_t since_ns_ = 0;
};

PyObject* put_object(BroadcastEnd* self, Publisher& publisher, PyObject* object, Deadline deadline, bool move) {
  const Ring& ring = *publisher.ring();
  ReadersHooks hooks(self, ring);
  const platform::WaitContext wait{deadline, &hooks, &self->spin};
  if (is_frame(object)) {
    if (!may_go(self, object, {.allow_pickle = self->allow_pickle})) return nullptr;
    return hooks.ticket_or_raise(endpoint::put(publisher, endpoint::WholeFrame(frame_bytes(object)), wait));
  }
  OutgoingObject message(*ring.arena(), move ? Lending::kMove : Lending::kOwn);
  if (!message.encode(self, object, {.allow_pickle = self->allow_pickle})) return nullptr;
  return hooks.ticket_or_raise(endpoint::put(publisher, message, wait));
}

PyObject* BroadcastEnd::put(PyObject* self, PyObject* object, Deadline deadline, bool move) {
  return with_open(self, [&](Publisher& publisher) { return put_object(of(self), publisher, object, deadline, move); });
}

PyObject* BroadcastEnd::put_many(PyObject* self, PyObject* iterable, Deadline deadline) {
  if (!of(self)->open()) return nullptr;  // before the first item is taken
  const Ref iterator(iterator_of(iterable));
  if (!iterator) return nullptr;
  std::uint64_t sent = 0;
  while (const Ref item{next_of(iterator.get())}) {
    if (!Ref(put(self, item.get(), deadline, false))) break;
    ++sent;
  }
  if (!PyErr_Occurred()) return PyLong_FromUnsignedLongLong(sent);
  add_to_exception("sent", sent);
  return nullptr;
}

PyObject* BroadcastEnd::wait_for_acks(PyObject* self, std::optional<std::uint64_t> ticket, Deadline deadline) {
  return with_open(self, [&](Publisher& publisher) {
    ReadersHooks hooks(of(self), *publisher.ring());
    return hooks.none_or_raise(publisher.wait_until_passed(ticket, {deadline, &hooks, &as_end(self)->spin}));
  });
}

PyObject* attach_broadcast(PyObject* self, PyObject* args) {
  PyObject *ring = nullptr, *name = nullptr;
  int allow_pickle = 0;
  if (!PyArg_ParseTuple(args, "OpO", &ring, &allow_pickle, &name)) return nullptr;
  return new_reference_from([&]() -> py::object {
    auto core = py::handle(ring).cast<std::shared_ptr<Ring>>();
    const bool allowed = allow_pickle != 0 && core->allows_pickle();
    BroadcastEnd::of(self)->attach(std::make_shared<Publisher>(std::move(core)), allowed, name);
    return py::none();
  });
}

PyObject* wait_for_subscribers(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  Deadline deadline;
  std::uint64_t count = 0;
  if (!parse_wait_for_peers("wait_for_subscribers", args, nargs, keywords, &count, &deadline)) return nullptr;
  return BroadcastEnd::with_open(self, [&](Publisher& publisher) -> PyObject* {
    RingHooks hooks(as_end(self));
    const Status attached = publisher.ring()->wait_for_readers(count, {deadline, &hooks, &as_end(self)->spin});
    if (!attached) return hooks.raise(attached.error());
    Py_RETURN_NONE;
  });
}

// Arguments: the Python class of the subscriber, start, on_lag, timeout.
PyObject* subscribe(PyObject* self, PyObject* args) {
  static constexpr Policy kPolicies[] = {Policy::kBlock, Policy::kSkip, Policy::kLatest, Policy::kRaise};
  PyObject *cls = nullptr, *start = nullptr, *on_lag = nullptr, *timeout = nullptr;
  Deadline deadline;
  if (!PyArg_ParseTuple(args, "O!OOO", &PyType_Type, &cls, &start, &on_lag, &timeout)) return nullptr;
  const int oldest = one_of(start, "start", {"next", "oldest"});
  const int policy = oldest < 0 ? -1 : one_of(on_lag, "on_lag", {"block", "skip", "latest", "raise"});
  if (policy < 0 || !parse_deadline(nullptr, timeout, &deadline)) return nullptr;
  return BroadcastEnd::with_open(self, [&](Publisher& publisher) -> PyObject* {
    RingHooks hooks(as_end(self));
    auto subscriber =
        broadcast::Subscriber::create(publisher.ring(), kPolicies[policy], oldest == 1, {deadline, &hooks});
    if (!subscriber) return hooks.raise(subscriber.error());
    return new_subscriber(reinterpret_cast<PyTypeObject*>(cls), std::move(*subscriber), as_end(self)->allow_pickle,
                          BroadcastEnd::of(self)->port.name());
  });
}

PyObject* broadcast_stats(PyObject* self, PyObject*) {
  return BroadcastEnd::with_open(self, [&](Publisher& publisher) {
    Ring& ring = *publisher.ring();
    notice_deaths(*ring.arena(), 0);
    return new_reference_from([&] {
      return py::dict("put"_a = ring.tail(), "capacity"_a = ring.capacity(), "history"_a = ring.history(),
                      "kept"_a = ring.tail() - ring.oldest(), "subscribers"_a = ring.readers(),
                      "publishers"_a = ring.publishers(), "pickled"_a = as_end(self)->pickled.load());
    });
  });
}

// Arguments: first_unread, hub.
PyObject* await_space(PyObject* self, PyObject* args) {
  unsigned long long before = 0;
  PyObject* hub = nullptr;
  if (!PyArg_ParseTuple(args, "KO", &before, &hub)) return nullptr;
  const auto publisher = BroadcastEnd::of(self)->port.part();
  if (!publisher) Py_RETURN_TRUE;
  Ring& ring = *publisher->ring();
  channel::WakeHub* const to = hub_of(hub);
  if (!to) return nullptr;
  const Status asked = ring.await_space(to->address());
  return asked ? PyBool_FromLong(ring.first_unread() != before) : raise(asked.error());
}

PyObject* is_ready_for_put(PyObject* self, PyObject* given) {
  const unsigned long long before = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred()) return nullptr;
  const auto publisher = BroadcastEnd::of(self)->port.part();
  if (!publisher) Py_RETURN_TRUE;
  Ring& ring = *publisher->ring();
  return PyBool_FromLong(ring.first_unread() != before || (ring.drop_dead() && ring.first_unread() != before));
}

PyObject* get_ring(PyObject* self, void*) {
  return BroadcastEnd::with_open(
      self, [](Publisher& publisher) { return new_reference_from([&] { return py::cast(publisher.ring()); }); });
}

py::tuple make_broadcast(py::handle capacity, py::handle max_bytes, py::handle history, std::optional<std::string> name,
                         std::shared_ptr<Arena> arena, py::handle allow_pickle, py::handle on_peer_death,
                         py::handle keep_open, py::handle exist_ok) {
  const auto request =
      object_request(discovery::NamedKind::kBroadcast, std::move(name), std::move(arena), allow_pickle, exist_ok);
  broadcast::Options options{.allow_pickle = request.allows_pickle()};
  check(parse_natural(capacity.ptr(), "capacity", &options.capacity));
  check(parse_limit(max_bytes.ptr(), "max_bytes", &options.max_bytes));
  check(parse_natural(history.ptr(), "history", &options.history));
  const bool keeps_open = chosen(one_of_keep_open(keep_open.ptr()), {false, true, true});
  options.waits = chosen(one_of(on_peer_death.ptr(), "on_peer_death", {"raise", "wait"}), {keeps_open, true});
  return make_published<Ring>(request, options);
}

constexpr bool (Ring::*kHasSpace)() noexcept = &Ring::has_space;

const PyMethodDef kBroadcastMethods[] = {
    {"wait_for_subscribers", as_method<wait_for_subscribers>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"has_space", reading_method<BroadcastEnd, kHasSpace>(), METH_NOARGS, nullptr},
    {"_attach", as_method<attach_broadcast>(), METH_VARARGS, nullptr},
    {"_subscribe", as_method<subscribe>(), METH_VARARGS, nullptr},
    {"_stats", as_method<broadcast_stats>(), METH_NOARGS, nullptr},
    {"_first_unread", reading_method<BroadcastEnd, &Ring::first_unread>(), METH_NOARGS, nullptr},
    {"_name_to_put", reading_method<BroadcastEnd, &Ring::space_name>(), METH_NOARGS, nullptr},
    {"_await_to_put", as_method<await_space>(), METH_VARARGS, nullptr},
    {"_ready_to_put", as_method<is_ready_for_put>(), METH_O, nullptr},
};

const PyGetSetDef kBroadcastAttributes[] = {
    {"_name", guarded<name_of_end<BroadcastEnd>>, nullptr, nullptr, nullptr},
    {"_shared", guarded<get_ring>, nullptr, nullptr, nullptr},
    {"capacity", reading_attribute<BroadcastEnd, &Ring::capacity>(), nullptr, nullptr, nullptr},
    {"pending_acks", reading_attribute<BroadcastEnd, &Publisher::pending>(), nullptr, nullptr, nullptr},
};

}  // namespace

void bind_ring(py::module_& module) {
  py::class_<Ring, std::shared_ptr<Ring>>(module, "Ring", plain_class())
      .def_static(
          "open",
          [](const std::shared_ptr<Arena>& arena, std::uint64_t block) {
            GilHooks hooks;
            return unwrap(Ring::open(arena, memory::unpack(block), {Deadline(), &hooks}));
          },
          "arena"_a, "block"_a)
      .def_property_readonly("arena", [](const Ring& ring) { return ring.arena(); })
      .def_property_readonly("block", [](const Ring& ring) { return memory::pack(ring.block()); })
      .def("progress", &progress_of);
  module.def("make_broadcast", &make_broadcast, "capacity"_a = 8, "max_bytes"_a = py::none(), "history"_a = 0,
             "name"_a = py::none(), "arena"_a = py::none(), "allow_pickle"_a = py::none(), "on_peer_death"_a = "raise",
             "keep_open"_a = false, "exist_ok"_a = false);
}

bool init_broadcast(PyObject* module) {
  return add_end_type(module, {"shmtree._core.BroadcastBase",
                               sizeof(BroadcastEnd),
                               guarded<BroadcastEnd::make>,
                               {PutMethods<BroadcastEnd>::table(), AckMethods<BroadcastEnd>::table(),
                                publishing_methods(), kBroadcastMethods},
                               {kBroadcastAttributes}});
}

}  // namespace shmtree::python
