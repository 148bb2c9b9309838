// _core.Channel: the parts of a channel that belong to neither end, and one-time settings of the module.
#include "channel/channel.h"

#include "bindings/bind.h"
#include "bindings/codec/portable.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/options.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/make_object.h"
#include "bindings/endpoint/spans.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/objects/deaths.h"
#include "broadcast/ring.h"
#include "endpoint/channels.h"
#include "endpoint/message_transfers.h"
#include "replay/rows/members.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using channel::Channel;
using channel::End;
using memory::Arena;

namespace {

std::optional<double> seconds_of_timeout(py::handle timeout, const char* what) {
  std::optional<std::chrono::nanoseconds> time;
  if (!parse_timeout(timeout.ptr(), &time, what)) throw py::error_already_set();
  if (!time) return std::nullopt;
  return std::chrono::duration<double>(*time).count();
}

// Returns a function for Python that parses `value` with `parse`. `what` is the name in errors.
template <class Number>
auto parsed_by(bool (*parse)(PyObject*, const char*, Number*)) {
  return [parse](const char* what, py::handle value) {
    Number number{};
    check(parse(value.ptr(), what, &number));
    return number;
  };
}

// Makes the channel of a "pair", "queue", "pipe" or "service". If `arena` is null, a named channel gets an arena of its
// own.
py::tuple make_channel(const std::string& kind, py::handle capacity, py::handle max_bytes,
                       std::optional<std::string> name, std::shared_ptr<Arena> arena, py::handle allow_pickle,
                       py::handle on_peer_death, py::handle portable, py::handle exist_ok, py::handle max_unacked,
                       py::handle max_attempts, py::handle on_full, py::handle keep_open) {
  using channel::Ending, channel::KeepOpen;
  channel::ChannelOptions options;
  if (kind == "queue") {
    std::int64_t maxsize = 0;
    check(parse_whole(capacity.ptr(), "maxsize", &maxsize));
    options.capacity = maxsize < 0 ? 0 : static_cast<std::uint64_t>(maxsize);
    options.ending =
        chosen(one_of(on_peer_death.ptr(), "on_peer_death", {"wait", "raise"}), {Ending::kWait, Ending::kRaise});
  } else {
    check(parse_limit(capacity.ptr(), "capacity", &options.capacity));
    options.ending = chosen(one_of(on_peer_death.ptr(), "on_peer_death", {"raise", "wait", "each"}),
                            {Ending::kRaise, Ending::kWait, Ending::kEach});
  }
  check(parse_limit(max_bytes.ptr(), "max_bytes", &options.max_bytes));
  check(parse_limit(max_unacked.ptr(), "max_unacked", &options.max_unacked));
  check(parse_limit(max_attempts.ptr(), "max_attempts", &options.max_attempts));
  options.drop_oldest = chosen(one_of(on_full.ptr(), "on_full", {"block", "drop_oldest"}), {false, true});
  options.keep_open = chosen(one_of_keep_open(keep_open.ptr()), {KeepOpen::kNo, KeepOpen::kReceivers, KeepOpen::kBoth});
  options.is_pipe = kind == "pipe";
  options.takes_requests = kind == "service";
  if (options.takes_requests && options.keep_open == KeepOpen::kNo) {
    throw py::value_error("keep_open is False; it must be True or 'both': servers always wait for new clients");
  }
  check(parse_flag(portable.ptr(), &options.portable));
  const auto named_kind = kind == "queue" ? discovery::NamedKind::kQueue : discovery::NamedKind::kChannel;
  const auto request = object_request(named_kind, std::move(name), std::move(arena), allow_pickle, exist_ok);
  auto made = unwrap(without_gil([&] { return endpoint::make_channel(request, options); }));
  return py::make_tuple(std::move(made.object), std::move(made.name));
}

std::shared_ptr<Channel> open(const std::shared_ptr<Arena>& arena, std::uint64_t block) {
  GilHooks hooks;
  return unwrap(Channel::open(arena, memory::unpack(block), {platform::Deadline::never(), &hooks}));
}

py::dict channel_stats(Channel& channel) {
  notice_deaths(*channel.arena(), 0);
  const channel::ChannelStats stats = channel.stats();
  return py::dict(
      "put"_a = stats.put, "received"_a = stats.received, "queued"_a = stats.queued,
      "queued_bytes"_a = stats.queued_bytes, "taken"_a = stats.taken, "returned"_a = stats.returned,
      "dead_letters"_a = stats.dead_letters, "unfinished"_a = stats.unfinished, "capacity"_a = stats.capacity,
      "max_bytes"_a = stats.max_bytes, "max_unacked"_a = stats.max_unacked, "max_attempts"_a = stats.max_attempts,
      "senders"_a = stats.senders, "receivers"_a = stats.receivers, "senders_attached"_a = stats.senders_attached,
      "receivers_attached"_a = stats.receivers_attached, "senders_never_used"_a = stats.senders_never_used,
      "receivers_never_used"_a = stats.receivers_never_used, "senders_in_transit"_a = stats.senders_in_transit,
      "receivers_in_transit"_a = stats.receivers_in_transit, "dropped"_a = stats.dropped);
}

}  // namespace

void bind_channel(py::module_& module) {
  py::class_<Channel, std::shared_ptr<Channel>>(module, "Channel", plain_class())
      .def_static("open", &open, "arena"_a, "block"_a)
      .def_property_readonly("arena", &Channel::arena)
      .def_property_readonly("block", [](const Channel& channel) { return memory::pack(channel.block()); })
      .def_property_readonly("capacity", &Channel::capacity)
      .def_property_readonly("allows_pickle", &Channel::allows_pickle)
      .def_property_readonly("dropped", &Channel::dropped)
      .def("count_puts", &Channel::count_puts)
      .def_property_readonly("counted", &Channel::counted)
      .def("leave_to_successor", [](Channel& channel) { unwrap(channel.leave_to_successor()); })
      .def("become_successor", [](Channel& channel) { unwrap(channel.become_successor()); })
      .def("unacked", &Channel::unacked)
      .def_property_readonly("is_awaited", &Channel::is_awaited)
      .def("note_asked", &Channel::note_asked)
      .def_property_readonly("asked_ns", &Channel::asked_ns)
      .def("note_named", &Channel::note_named)
      .def("require_portable", &Channel::require_portable)
      .def("note_killed_receiver",
           [](Channel& channel, int pid) { channel.ends().note_killed(channel::End::kReceiving, pid); })
      .def_property_readonly("is_queue", &Channel::is_queue)
      .def_property_readonly("takes_requests", &Channel::takes_requests)
      .def_property_readonly("waits_for_receivers", &Channel::waits_for_receivers)
      .def("stats", &channel_stats)
      .def(
          "begin_transfer",
          [](const std::shared_ptr<Channel>& channel, bool receiving, const endpoint::Name* name) {
            if (PortableScope::is_portable()) {
              refuse_local(receiving ? "receiving end" : "sending end");
              throw py::error_already_set();
            }
            const auto begin = [&] { return endpoint::MessageTransfers::begin(channel, end_of(receiving), name); };
            return unwrap(without_gil(begin, name != nullptr));
          },
          "receiving"_a, "name"_a = nullptr)
      .def(
          "check_transfer",
          [](Channel& channel, std::uint64_t number, bool receiving, int giver_pid) {
            unwrap(channel.ends().check_transfer(number, end_of(receiving), giver_pid));
          },
          "number"_a, "receiving"_a, "giver_pid"_a)
      .def(
          "end_transfer",
          [](Channel& channel, std::uint64_t number, bool receiving, endpoint::Name* name) {
            without_gil([&] { endpoint::end_transfer(channel, number, end_of(receiving), name); }, name != nullptr);
          },
          "number"_a, "receiving"_a, "name"_a = nullptr)
      .def(
          "give_to",
          [](Channel& channel, memory::Identity child, bool receiving) {
            channel.membership().give_to(child, end_of(receiving));
          },
          "identity"_a, "receiving"_a);
  module.def("make_channel", &make_channel, "kind"_a, "capacity"_a = py::none(), "max_bytes"_a = py::none(),
             "name"_a = py::none(), "arena"_a = py::none(), "allow_pickle"_a = py::none(), "on_peer_death"_a = "raise",
             "portable"_a = false, "exist_ok"_a = false, "max_unacked"_a = py::none(), "max_attempts"_a = py::none(),
             "on_full"_a = "block", "keep_open"_a = false);
  module.def("set_unused_after", &set_unused_after, "seconds"_a);
  module.def(
      "note_exit_code", [](std::uint32_t code) { memory::note_exit(static_cast<memory::Failure>(code)); }, "code"_a);
  module.def("leave_all", [] {
    set_exiting(true);
    const WithoutGil unlocked;
    Channel::leave_all();
    broadcast::Ring::leave_all();
    replay::BufferMembers::leave_all();
  });
  module.def("forget_exit", [] {
    set_exiting(false);
    memory::note_exit(memory::Failure::kNone);
  });
  module.def("note_process_name", &note_process_name);
  module.def("parse_timeout", &seconds_of_timeout, "timeout"_a, "what"_a = "timeout");
  module.def("parse_whole", parsed_by(&parse_whole), "what"_a, "value"_a);
  module.def("parse_natural", parsed_by(&parse_natural), "what"_a, "value"_a);
  module.def("parse_limit", parsed_by(&parse_limit), "what"_a, "value"_a);
  module.def(
      "set_idle_callback", [](py::handle callback) { set_idle_callback(callback.ptr()); }, "callback"_a);
  module.def(
      "set_close_callback", [](py::handle callback) { set_close_callback(callback.ptr()); }, "callback"_a);
  module.def(
      "want_idle", [](bool wanted) { idle_wanted.store(wanted, std::memory_order_relaxed); }, "wanted"_a);
  module.def(
      "set_spans",
      [](const py::dict& flags, const py::str& key, const py::function& begin) {
        set_spans(flags.ptr(), key.ptr(), begin.ptr());
      },
      "flags"_a, "key"_a, "begin"_a);
}

}  // namespace shmtree::python
