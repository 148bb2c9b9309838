// _core.Channel: the parts of a channel that belong to neither end, and one-time settings of the module.
#include "channel/channel.h"

#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/codec/portable.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/endpoint.h"
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

channel::Ending ending_of(const std::string& word) {
  if (word == "raise") return channel::Ending::kRaise;
  if (word == "wait") return channel::Ending::kWait;
  if (word == "each") return channel::Ending::kEach;
  if (word == "never") return channel::Ending::kNever;
  if (word == "queue_raise") return channel::Ending::kQueueRaise;
  throw py::value_error("on_peer_death is '" + word + "'; it must be 'raise', 'wait' or 'each'");
}

// Converts False, True or "both".
channel::KeepOpen keep_open_of(const py::object& keep_open) {
  if (py::isinstance<py::str>(keep_open)) return channel::KeepOpen::kBoth;
  return py::bool_(keep_open) ? channel::KeepOpen::kReceivers : channel::KeepOpen::kNo;
}

std::optional<double> seconds_of_timeout(py::handle timeout, const char* what) {
  std::optional<std::chrono::nanoseconds> time;
  if (!parse_timeout(timeout.ptr(), &time, what)) throw py::error_already_set();
  if (!time) return std::nullopt;
  return std::chrono::duration<double>(*time).count();
}

channel::ChannelOptions new_options(std::uint64_t capacity, std::uint64_t max_bytes, const std::string& ending,
                                    std::uint64_t max_unacked, std::uint64_t max_attempts, const py::object& keep_open,
                                    bool drop_oldest, bool portable, bool is_pipe, bool takes_requests,
                                    bool allow_pickle) {
  channel::ChannelOptions options;
  options.capacity = capacity;
  options.max_bytes = max_bytes;
  options.allow_pickle = allow_pickle;
  options.max_unacked = max_unacked;
  options.max_attempts = max_attempts;
  options.ending = ending_of(ending);
  options.keep_open = keep_open_of(keep_open);
  options.drop_oldest = drop_oldest;
  options.portable = portable;
  options.is_pipe = is_pipe;
  options.takes_requests = takes_requests;
  return options;
}

std::shared_ptr<Channel> create_channel(const std::shared_ptr<Arena>& arena, const channel::ChannelOptions& options) {
  return unwrap(without_gil([&] { return Channel::create(arena, options); }));
}

// If `arena` is null, the channel gets an arena of its own.
py::tuple create_named(const std::string& name, int kind, std::shared_ptr<Arena> arena,
                       const channel::ChannelOptions& options, bool exist_ok) {
  auto made = without_gil([&] {
    return endpoint::make_channel(name, static_cast<discovery::NamedKind>(kind), std::move(arena), options, exist_ok);
  });
  endpoint::KnownChannel known = unwrap(std::move(made));
  return py::make_tuple(std::move(known.channel), std::move(known.name));
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
  py::class_<channel::ChannelOptions>(module, "ChannelOptions", plain_class())
      .def(py::init(&new_options), "capacity"_a, "max_bytes"_a, "ending"_a, "max_unacked"_a, "max_attempts"_a,
           "keep_open"_a, "drop_oldest"_a, "portable"_a = false, "is_pipe"_a = false, "takes_requests"_a = false,
           py::kw_only(), "allow_pickle"_a);
  py::class_<Channel, std::shared_ptr<Channel>>(module, "Channel", plain_class())
      .def_static("create", &create_channel, "arena"_a, "options"_a)
      .def_static("create_named", &create_named, "name"_a, "kind"_a, "arena"_a, "options"_a, "exist_ok"_a)
      .def_static("open", &open, "arena"_a, "block"_a)
      .def_property_readonly("arena", &Channel::arena)
      .def_property_readonly("block", [](const Channel& channel) { return memory::pack(channel.block()); })
      .def_property_readonly("capacity", &Channel::capacity)
      .def_property_readonly("allows_pickle", &Channel::allows_pickle)
      .def_property_readonly("is_portable", &Channel::is_portable)
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
      .def_property_readonly("receivers_left",
                             [](Channel& channel) { return channel.ends().is_left(channel::End::kReceiving); })
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
