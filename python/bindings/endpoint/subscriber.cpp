// _core.SubscriberBase: reads the messages of a Broadcast.
#include "bindings/endpoint/subscriber.h"

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/bind.h"
#include "bindings/endpoint/incoming.h"
#include "channel/wake_hub.h"
#include "endpoint/copy_policy.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using broadcast::Ring;
using broadcast::Subscriber;
using memory::Arena;

namespace {

Pool<broadcast::Received> broadcast_spares;

// Storage into which a call receives. It is reserved beforehand, so that returning the message needs no memory.
class BroadcastBuffer {
 public:
  explicit BroadcastBuffer(Subscriber& reader) : reader_(reader), received_(broadcast_spares.take()) {}
  ~BroadcastBuffer() {
    if (received_ == nullptr) return;
    received_->message.block.reset();
    broadcast_spares.give_back(received_.release());
  }
  BroadcastBuffer(const BroadcastBuffer&) = delete;
  BroadcastBuffer& operator=(const BroadcastBuffer&) = delete;
  broadcast::Incoming& message() noexcept { return received_->message; }
  void give_back(broadcast::FailedBuild how) noexcept { reader_.give_back(std::move(received_), how); }

 private:
  Subscriber& reader_;
  std::unique_ptr<broadcast::Received> received_;
};

// Returns the next message. If there is no memory to build it, or a signal handler raises, the next call returns it.
py::object read_one(const SubscriberEnd& self, Subscriber& reader, ClosableHooks& hooks, CopyPolicy copy) {
  BroadcastBuffer place(reader);
  hooks.done(reader.get(place.message(), hooks.wait()));
  const Ring& ring = *reader.ring();
  const broadcast::Incoming& message = place.message();
  Retry retry = Retry::kNever;
  try {
    const CopyPolicy policy = endpoint::copy_policy_of_published(copy, ring, message.block.valid());
    return decode_published(*ring.arena(), message.frame(), message.block, policy, self.allow_pickle, &retry);
  } catch (...) {
    if (retry == Retry::kCounted) place.give_back(broadcast::FailedBuild::kCounted);
    if (retry == Retry::kInterrupted) place.give_back(broadcast::FailedBuild::kInterrupted);
    throw;
  }
}

py::object get_broadcast(const SubscriberEnd& self, py::handle block, py::handle timeout, py::handle copy) {
  const auto subscriber = self.open();
  const CopyPolicy policy = copy_policy_of(copy);
  ClosableHooks hooks(self, block, timeout);
  return read_one(self, *subscriber, hooks, policy);
}

// Returns (ticket, frame) of the next message, without waiting.
py::tuple get_frame(const SubscriberEnd& self) {
  const auto reader = self.open();
  BroadcastBuffer place(*reader);
  ClosableHooks hooks(self, py::bool_(false), py::handle());
  hooks.done(reader->get(place.message(), hooks.wait()));
  const broadcast::Incoming& message = place.message();
  return published_frame(*reader->ring()->arena(), message.ticket, message.frame(), message.block);
}

// Appends the next message without waiting. Returns null on success, the error if the next call must raise it, or None
// if the next call will run into the same error.
py::object append_one(const SubscriberEnd& self, Subscriber& reader, CopyPolicy copy, py::list& items) try {
  ClosableHooks hooks(self, py::bool_(false), py::handle());
  items.append(py::none());  // reserves the item's place, so that a message is never lost for lack of memory
  try {
    items[items.size() - 1] = read_one(self, reader, hooks, copy);
  } catch (...) {
    const py::error_scope scope;
    PyList_SetSlice(items.ptr(), PyList_GET_SIZE(items.ptr()) - 1, PyList_GET_SIZE(items.ptr()), nullptr);
    throw;
  }
  return py::object();
} catch (py::error_already_set& error) {
  const auto& types = error_types();
  const PyObject* const met_again[] = {types.queue_empty, types.channel_closed, types.peer_died, PyExc_MemoryError};
  for (const PyObject* type : met_again) {
    if (error.matches(const_cast<PyObject*>(type))) return py::none();
  }
  return error.value();
} catch (const std::bad_alloc&) {
  return py::none();
}

// Returns a list of 1 to n messages, and the error that the next call raises, or None.
py::tuple get_many_broadcast(const SubscriberEnd& self, py::handle n, py::handle timeout, py::handle copy) {
  const auto subscriber = self.open();
  Py_ssize_t most = 0;
  const CopyPolicy policy = copy_policy_of(copy);
  if (!parse_count(n.ptr(), &most)) throw py::error_already_set();
  py::tuple made(2);
  py::list items(1);
  items[0] = py::none();
  made[1] = py::none();
  made[0] = items;
  {
    ClosableHooks hooks(self, py::handle(), timeout);
    items[0] = read_one(self, *subscriber, hooks, policy);
  }
  while (PyList_GET_SIZE(items.ptr()) < most && !self.is_closed() && subscriber->size() > 0) {
    const py::object error = append_one(self, *subscriber, policy, items);
    if (!error) continue;
    made[1] = error;
    break;
  }
  return made;
}

std::unique_ptr<SubscriberEnd> open_subscriber(const std::shared_ptr<Arena>& arena, std::uint64_t block,
                                               bool allow_pickle) {
  GilHooks hooks;
  return std::make_unique<SubscriberEnd>(
      unwrap(Subscriber::open(arena, memory::unpack(block), {platform::Deadline(), &hooks})), allow_pickle);
}

// Returns (arena, block) of a subscriber that goes to another process.
py::tuple give(const SubscriberEnd& self) {
  const auto subscriber = self.open();
  const memory::BlockRef block = unwrap(subscriber->give());
  return py::make_tuple(subscriber->ring()->arena(), memory::pack(block));
}

}  // namespace

void bind_subscriber(py::module_& module) {
  py::class_<SubscriberEnd>(module, "SubscriberBase", plain_class())
      .def(py::init(&open_subscriber), "arena"_a, "block"_a, "allow_pickle"_a)
      .def("_get", &get_broadcast, "block"_a, "timeout"_a, "copy"_a)
      .def("_get_many", &get_many_broadcast, "n"_a, "timeout"_a, "copy"_a)
      .def("_get_frame", &get_frame)
      .def("_give", &give)
      .def("qsize", [](const SubscriberEnd& self) { return self.open()->size(); })
      .def("fileno", [](const SubscriberEnd& self) { return unwrap(self.open()->fd()); })
      .def("_open_to_wait",
           [](const SubscriberEnd& self) {
             bool opened = false;
             const int fd = unwrap(self.open()->fd(&opened));
             return py::make_tuple(fd, opened);
           })
      .def("_close_after_wait",
           [](const SubscriberEnd& self) {
             if (!self.is_closed()) self.open()->close_fd();
           })
      .def("_name_to_get",
           [](const SubscriberEnd& self) {
             const platform::WakeText name = self.open()->ring()->name();
             return py::bytes(name.data(), name.size());
           })
      .def(
          "_await_to_get",
          [](const SubscriberEnd& self, const channel::WakeHub& hub) {
            if (self.is_closed()) return true;
            const auto subscriber = self.open();
            unwrap(subscriber->ring()->await(hub.address()));
            return subscriber->ready();
          },
          "hub"_a)
      .def("_ready", [](const SubscriberEnd& self) { return self.is_closed() || self.open()->ready(); })
      .def_property_readonly("_arena", [](const SubscriberEnd& self) { return self.open()->ring()->arena(); })
      .def_property_readonly("missed", [](const SubscriberEnd& self) { return self.open()->missed(); })
      .def_property_readonly("closed", [](const SubscriberEnd& self) { return self.is_closed(); })
      .def_property_readonly("allow_pickle", [](const SubscriberEnd& self) { return self.allow_pickle; })
      .def("close", [](SubscriberEnd& self) {
        if (const auto last = self.close()) {
          last->close();
          last->wake();  // ends the waits in calls of this object
        }
      });
}

}  // namespace shmtree::python
