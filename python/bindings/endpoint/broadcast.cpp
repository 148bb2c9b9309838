// _core.BroadcastBase and its Ring: publishes messages that each subscriber receives.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/endpoint/published.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/endpoint/subscriber.h"
#include "bindings/objects/deaths.h"
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

Policy policy_of(const std::string& word) {
  if (word == "block") return Policy::kBlock;
  if (word == "skip") return Policy::kSkip;
  if (word == "latest") return Policy::kLatest;
  if (word == "raise") return Policy::kRaise;
  throw py::value_error("on_lag is '" + word + "'; it must be 'block', 'skip', 'latest' or 'raise'");
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

void wait_for_subscribers(BroadcastEnd& self, std::uint64_t n, py::handle timeout) {
  const auto ring = self.ring();
  ClosableHooks hooks(self, py::handle(), timeout);
  hooks.done(ring->wait_for_readers(n, hooks.wait()));
}

std::unique_ptr<SubscriberEnd> subscribe(const BroadcastEnd& self, const std::string& on_lag, bool from_oldest,
                                         py::handle timeout) {
  const auto ring = self.ring();
  ClosableHooks hooks(self, py::handle(), timeout);
  auto made = hooks.done(Subscriber::create(ring, policy_of(on_lag), from_oldest, hooks.wait()));
  return std::make_unique<SubscriberEnd>(std::move(made), self.allow_pickle);
}

py::dict broadcast_stats(const BroadcastEnd& self) {
  const auto ring = self.ring();
  notice_deaths(*ring->arena(), 0);
  return py::dict("put"_a = ring->tail(), "capacity"_a = ring->capacity(), "history"_a = ring->history(),
                  "kept"_a = ring->tail() - ring->oldest(), "subscribers"_a = ring->readers(),
                  "publishers"_a = ring->publishers(), "pickled"_a = self.pickled.load());
}

}  // namespace

void bind_broadcast(py::module_& module) {
  py::class_<Ring, std::shared_ptr<Ring>>(module, "Ring", plain_class())
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
      .def("progress", &progress_of);
  py::class_<BroadcastEnd>(module, "BroadcastBase", plain_class())
      .def(py::init<std::shared_ptr<Ring>, bool>(), "ring"_a, "allow_pickle"_a)
      .def_property_readonly("_ring", &BroadcastEnd::ring)
      .def_property_readonly("closed", [](const BroadcastEnd& self) { return self.is_closed(); })
      .def_property_readonly("allow_pickle", [](const BroadcastEnd& self) { return self.allow_pickle; })
      .def("_put", &put_broadcast, "obj"_a, "block"_a, "timeout"_a, "move"_a)
      .def("has_space", [](const BroadcastEnd& self) { return self.ring()->has_space(); })
      .def("_first_unread", [](const BroadcastEnd& self) { return self.ring()->first_unread(); })
      .def("_name_to_put",
           [](const BroadcastEnd& self) {
             const platform::WakeText name = self.ring()->space_name();
             return py::bytes(name.data(), name.size());
           })
      .def(
          "_await_to_put",
          [](const BroadcastEnd& self, std::uint64_t first_unread, const channel::WakeHub& hub) {
            if (self.is_closed()) return true;
            const auto ring = self.ring();
            unwrap(ring->await_space(hub.address()));
            return ring->first_unread() != first_unread;
          },
          "first_unread"_a, "hub"_a)
      .def(
          "_ready_to_put",
          [](const BroadcastEnd& self, std::uint64_t first_unread) {
            if (self.is_closed()) return true;
            const auto ring = self.ring();
            return ring->first_unread() != first_unread || (ring->drop_dead() && ring->first_unread() != first_unread);
          },
          "first_unread"_a)
      .def_property_readonly("pending_acks", [](const BroadcastEnd& self) { return self.open()->pending(); })
      .def("_wait_for_subscribers", &wait_for_subscribers, "n"_a, "timeout"_a)
      .def("_wait_until_passed", &wait_until_passed, "ticket"_a, "timeout"_a)
      .def("_subscribe", &subscribe, "on_lag"_a, "from_oldest"_a, "timeout"_a)
      .def("_stats", &broadcast_stats)
      .def("close",
           [](BroadcastEnd& self) {
             if (const auto last = self.close()) last->close();
           })
      .def("_fail", &fail_publisher<BroadcastEnd>, "exit_code"_a);
}

}  // namespace shmtree::python
