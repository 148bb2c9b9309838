// _core.BroadcastBase and SubscriberBase: messages that each subscriber receives.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/endpoint/end_docs.h"
#include "bindings/endpoint/incoming.h"
#include "bindings/endpoint/published.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/objects/deaths.h"
#include "broadcast/subscriber.h"
#include "channel/wake_hub.h"
#include "endpoint/copy_policy.h"
#include "endpoint/published.h"
#include "platform/clock.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using broadcast::Policy;
using broadcast::Publisher;
using broadcast::Ring;
using broadcast::Subscriber;
using memory::Arena;

namespace {

// The C++ part of a Broadcast object.
class BroadcastEnd : public Closable<Publisher> {
 public:
  BroadcastEnd(const std::shared_ptr<Ring>& ring, bool allows)
      : Closable(std::make_shared<Publisher>(ring), "Broadcast"), allow_pickle(allows && ring->allows_pickle()) {}
  std::shared_ptr<Ring> ring() const { return open()->ring(); }
  const bool allow_pickle;
  std::atomic<std::uint64_t> pickled{0};
  StalledWait stalled_wait{};
};

// Hooks for a put that waits for subscribers. They warn of a subscriber that blocks the put and was never used.
class ReadersHooks final : public ClosableHooks {
 public:
  ReadersHooks(BroadcastEnd& end, const Ring& ring, py::handle block, py::handle timeout)
      : ClosableHooks(end, block, timeout), stalled_wait_(end.stalled_wait), ring_(ring) {}
  void before_block() noexcept override {
    if (since_ns_ == 0) since_ns_ = platform::monotonic_ns();
    ClosableHooks::before_block();
  }
  bool interrupted() noexcept override { return ClosableHooks::interrupted() || !check_for_unused(); }
  // Returns false if the warning was turned into an exception, which is set.
  bool check_for_unused() const noexcept try {
    if (since_ns_ == 0 || stalled_wait_.was_warned.load(std::memory_order_relaxed)) return true;
    const auto blocker = ring_.unused_blocker();
    if (!blocker) return stalled_wait_.waited_ns.store(0), true;
    const std::int64_t waited = count_stalled_wait(stalled_wait_, blocker->position, since_ns_);
    return waited == 0 ||
           PyErr_WarnFormat(error_types().unused_end_warning, 1,
                            "waited %lld s for a subscriber of a Broadcast that %s and never used: "
                            "call close() on it in processes that do not use it",
                            static_cast<long long>(waited / 1'000'000'000), blocker->process.c_str()) == 0;
  } catch (const std::bad_alloc&) {  // the next check warns
    return true;
  }
  template <class T>
  T done_waiting(Result<T> result) {
    const bool is_timeout = !result.ok() && (result.code() == Code::kFull || result.code() == Code::kTimeout);
    if (is_timeout && !check_for_unused()) throw py::error_already_set();
    return done(std::move(result));
  }

 private:
  StalledWait& stalled_wait_;
  const Ring& ring_;
  std::int64_t since_ns_ = 0;
};

class SubscriberEnd : public Closable<Subscriber> {
 public:
  SubscriberEnd(std::unique_ptr<Subscriber> made, bool allows)
      : Closable(std::shared_ptr<Subscriber>(std::move(made)), "Subscriber"),
        allow_pickle(allows && open()->ring()->allows_pickle()) {}
  const bool allow_pickle;
};

Policy policy_of(const std::string& word) {
  if (word == "block") return Policy::kBlock;
  if (word == "skip") return Policy::kSkip;
  if (word == "latest") return Policy::kLatest;
  if (word == "raise") return Policy::kRaise;
  throw py::value_error("behind is '" + word + "'; it must be 'block', 'skip', 'latest' or 'raise'");
}

std::uint64_t put_broadcast(BroadcastEnd& self, py::handle object, py::handle block, py::handle timeout, bool move) {
  const auto publisher = self.open();
  ReadersHooks hooks(self, *publisher->ring(), block, timeout);
  Published value(*publisher->ring()->arena(), object.ptr(), self.allow_pickle, move, "this Broadcast", self.pickled);
  return hooks.done_waiting(endpoint::put(*publisher, value, hooks.wait()));
}

void wait_until_passed(BroadcastEnd& self, std::optional<std::uint64_t> ticket, py::handle timeout) {
  const auto publisher = self.open();
  ReadersHooks hooks(self, *publisher->ring(), py::handle(), timeout);
  hooks.done_waiting(publisher->wait_until_passed(ticket, hooks.wait()));
}

std::unique_ptr<SubscriberEnd> subscribe(const BroadcastEnd& self, const std::string& behind, bool from_oldest,
                                         py::handle timeout) {
  const auto ring = self.ring();
  ClosableHooks hooks(self, py::handle(), timeout);
  auto made = hooks.done(Subscriber::create(ring, policy_of(behind), from_oldest, hooks.wait()));
  return std::make_unique<SubscriberEnd>(std::move(made), self.allow_pickle);
}

py::dict broadcast_stats(const BroadcastEnd& self) {
  const auto ring = self.ring();
  notice_deaths(*ring->arena(), 0);
  return py::dict("put"_a = ring->tail(), "capacity"_a = ring->capacity(), "history"_a = ring->history(),
                  "kept"_a = ring->tail() - ring->oldest(), "subscribers"_a = ring->readers(),
                  "publishers"_a = ring->publishers(), "pickled"_a = self.pickled.load());
}

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
  BroadcastBuffer buffer(reader);
  hooks.done(reader.get(buffer.message(), hooks.wait()));
  const Ring& ring = *reader.ring();
  const broadcast::Incoming& message = buffer.message();
  Retry retry = Retry::kNever;
  try {
    const CopyPolicy policy = endpoint::copy_policy_of_published(copy, ring, message.block.valid());
    return decode_published(*ring.arena(), message.frame(), message.block, policy, self.allow_pickle, &retry);
  } catch (...) {
    if (retry == Retry::kCounted) buffer.give_back(broadcast::FailedBuild::kCounted);
    if (retry == Retry::kInterrupted) buffer.give_back(broadcast::FailedBuild::kInterrupted);
    throw;
  }
}

py::object get_broadcast(const SubscriberEnd& self, py::handle block, py::handle timeout, py::handle copy) {
  const auto subscriber = self.open();
  const CopyPolicy policy = copy_policy_of(copy);
  ClosableHooks hooks(self, block, timeout);
  return read_one(self, *subscriber, hooks, policy);
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
  const PyObject* const persistent[] = {types.queue_empty, types.channel_closed, types.peer_died, PyExc_MemoryError};
  for (const PyObject* type : persistent) {
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

void bind_broadcast(py::module_& module) {
  py::class_<Ring, std::shared_ptr<Ring>>(module, "Ring", "The ring of a Broadcast.", plain_class())
      .def_static(
          "create",
          [](std::shared_ptr<Arena> arena, std::uint64_t capacity, std::uint64_t history, std::uint64_t max_bytes,
             bool allow_pickle, bool waits) {
            GilHooks hooks;
            broadcast::Options options{capacity, history, max_bytes, allow_pickle, waits};
            return unwrap(Ring::create(std::move(arena), options, {platform::Deadline(), &hooks}));
          },
          "arena"_a, "capacity"_a, "history"_a, "max_bytes"_a, "allow_pickle"_a, "waits"_a)
      .def_static(
          "open",
          [](const std::shared_ptr<Arena>& arena, std::uint64_t block) {
            GilHooks hooks;
            return unwrap(Ring::open(arena, memory::unpack(block), {platform::Deadline(), &hooks}));
          },
          "arena"_a, "block"_a)
      .def_property_readonly("arena", [](const Ring& ring) { return ring.arena(); })
      .def_property_readonly("block", [](const Ring& ring) { return memory::pack(ring.block()); })
      .def_property_readonly("capacity", &Ring::capacity)
      .def(
          "check_options",
          [](const Ring& ring, std::uint64_t capacity, std::uint64_t history, std::uint64_t max_bytes,
             bool allow_pickle, bool waits) {
            unwrap(ring.check_options({capacity, history, max_bytes, allow_pickle, waits}));
          },
          "capacity"_a, "history"_a, "max_bytes"_a, "allow_pickle"_a, "waits"_a)
      .def("check", &Ring::check);
  py::class_<SubscriberEnd>(module, "SubscriberBase", "Base of Subscriber.", plain_class())
      .def(py::init(&open_subscriber), "arena"_a, "block"_a, "allow_pickle"_a)
      .def("_get", &get_broadcast, "block"_a, "timeout"_a, "copy"_a)
      .def("_get_many", &get_many_broadcast, "n"_a, "timeout"_a, "copy"_a)
      .def("_give", &give)
      .def(
          "qsize", [](const SubscriberEnd& self) { return self.open()->size(); },
          "Returns the number of messages that it can read now.")
      .def(
          "fileno", [](const SubscriberEnd& self) { return unwrap(self.open()->fd()); },
          "Returns a file descriptor for poll loops, readable while there is a message. It belongs to this object.")
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
      .def(
          "_name_to_get",
          [](const SubscriberEnd& self) {
            const platform::WakeText name = self.open()->ring()->name();
            return py::bytes(name.data(), name.size());
          },
          "Returns the bytes by which a WakeHub reports this object.")
      .def(
          "_await_to_get",
          [](const SubscriberEnd& self, const channel::WakeHub& hub) {
            if (self.is_closed()) return true;
            const auto subscriber = self.open();
            unwrap(subscriber->ring()->await(hub.address()));
            return subscriber->ready();
          },
          "hub"_a, "Has a WakeHub report once that _get() would return or raise. Returns True if it would already.")
      .def("_ready", [](const SubscriberEnd& self) { return self.is_closed() || self.open()->ready(); })
      .def_property_readonly("_arena", [](const SubscriberEnd& self) { return self.open()->ring()->arena(); })
      .def_property_readonly(
          "missed", [](const SubscriberEnd& self) { return self.open()->missed(); },
          "Number of messages that it has missed so far.")
      .def_property_readonly(
          "closed", [](const SubscriberEnd& self) { return self.is_closed(); }, kClosedDoc)
      .def_property_readonly(
          "allow_pickle", [](const SubscriberEnd& self) { return self.allow_pickle; }, kAllowPickleDoc)
      .def(
          "close",
          [](SubscriberEnd& self) {
            if (const auto last = self.close()) {
              last->close();
              last->wake();  // ends the waits in calls of this object
            }
          },
          "Detaches the subscriber, so that no publisher waits for it. Views stay valid. Later calls do nothing.");
  py::class_<BroadcastEnd>(module, "BroadcastBase", "Base of Broadcast.", plain_class())
      .def(py::init<std::shared_ptr<Ring>, bool>(), "ring"_a, "allow_pickle"_a)
      .def_property_readonly("_ring", &BroadcastEnd::ring)
      .def_property_readonly(
          "closed", [](const BroadcastEnd& self) { return self.is_closed(); }, kClosedDoc)
      .def_property_readonly(
          "allow_pickle", [](const BroadcastEnd& self) { return self.allow_pickle; }, kAllowPickleDoc)
      .def("_put", &put_broadcast, "obj"_a, "block"_a, "timeout"_a, "move"_a)
      .def(
          "has_space", [](const BroadcastEnd& self) { return self.ring()->has_space(); },
          "Returns True if a small message could be put without waiting.")
      .def(
          "_first_unread", [](const BroadcastEnd& self) { return self.ring()->first_unread(); },
          "Returns the ticket of the oldest message that a blocking reader has not read.")
      .def(
          "_name_to_put",
          [](const BroadcastEnd& self) {
            const platform::WakeText name = self.ring()->space_name();
            return py::bytes(name.data(), name.size());
          },
          "Returns the name that a WakeHub reports when there is space.")
      .def(
          "_await_to_put",
          [](const BroadcastEnd& self, std::uint64_t first_unread, const channel::WakeHub& hub) {
            if (self.is_closed()) return true;
            const auto ring = self.ring();
            unwrap(ring->await_space(hub.address()));
            return ring->first_unread() != first_unread;
          },
          "first_unread"_a, "hub"_a, "Asks a WakeHub for one text. Returns True if readers have read since then.")
      .def(
          "_ready_to_put",
          [](const BroadcastEnd& self, std::uint64_t first_unread) {
            if (self.is_closed()) return true;
            const auto ring = self.ring();
            return ring->first_unread() != first_unread || (ring->drop_dead() && ring->first_unread() != first_unread);
          },
          "first_unread"_a, "Returns True if blocking readers have read since then, or died.")
      .def_property_readonly(
          "pending_acks", [](const BroadcastEnd& self) { return self.open()->pending(); },
          "Number of messages, up to the last one of this object, that some blocking subscriber has not read.")
      .def("_wait_until_passed", &wait_until_passed, "ticket"_a, "timeout"_a)
      .def("_subscribe", &subscribe, "behind"_a, "from_oldest"_a, "timeout"_a)
      .def("_stats", &broadcast_stats)
      .def(
          "close",
          [](BroadcastEnd& self) {
            if (const auto last = self.close()) last->close();
          },
          "Detaches this object as a publisher. Later calls do nothing.\n\n"
          "Subscribers that have read all messages find the end once no publisher is attached.");
}

}  // namespace shmtree::python
