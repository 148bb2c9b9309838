// What an observer sees, as dicts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "observe/observer.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using namespace observe;
using channel::End;

namespace {

constexpr double kPerSecond = 1e9;

// Names may be no UTF-8; this is how Python has such names of files.
py::object text(const std::string& name) {
  return own(PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
}
py::object reason(const std::string& refused) {
  return refused.empty() ? py::object(py::none()) : text(refused);
}
py::list names_in(const std::vector<std::string>& names) {
  py::list out;
  for (const std::string& name : names) out.append(text(name));
  return out;
}

// The numbers of an arena's participants.
class Pids {
 public:
  explicit Pids(const ArenaInfo& arena) : arena_(arena) {}

  int of(Slot slot) const {
    for (const ParticipantInfo& one : arena_.participants) {
      if (one.slot == slot) return one.alive || one.pid != 0 ? one.pid : one.said_pid;  // the dead are not in sight
    }
    return 0;
  }
  py::list of(const std::vector<Slot>& slots) const {
    py::list out;
    for (const Slot slot : slots) out.append(of(slot));
    return out;
  }
  py::object of(const std::optional<Slot>& slot) const {
    return slot ? py::object(py::int_(of(*slot))) : py::object(py::none());
  }

 private:
  const ArenaInfo& arena_;
};

const char* word_of(channel::Ending ending) {
  switch (ending) {
    case channel::Ending::kRaise: return "raise";
    case channel::Ending::kWait: return "wait";
    case channel::Ending::kEach: return "each";
    case channel::Ending::kNever: return "never";
  }
  return "unknown";
}

const char* word_of(memory::WaitFor what) {
  using memory::WaitFor;
  switch (what) {
    case WaitFor::kNothing:
    case WaitFor::kUnsaid: return "nothing";
    case WaitFor::kMessage: return "message";
    case WaitFor::kRoom: return "room";
    case WaitFor::kMemory: return "memory";
    case WaitFor::kAcks: return "acknowledgements";
    case WaitFor::kTasks: return "tasks";
    case WaitFor::kReservation: return "reservation";
    case WaitFor::kNewer: return "newer version";
    case WaitFor::kRows: return "rows";
    case WaitFor::kRateLimit: return "rate limit";
    case WaitFor::kArray: return "array";
    case WaitFor::kLock: return "lock";
  }
  return "unknown";
}

py::dict described(const ThingInfo& thing) {
  return py::dict("block"_a = thing.block, "names"_a = names_in(thing.names), "refused"_a = reason(thing.refused),
                  "consistent"_a = thing.still);
}

void add_end(const Pids& pids, const EndInfo& end, const std::string& who, py::dict& out) {
  const auto key = [](const std::string& name) { return py::str(name); };
  out[key(who + "s")] = end.members.size();
  out[key(who + "s_counting")] = end.counting.size();
  out[key(who + "s_unused")] = pids.of(end.unused);
  out[key(who + "s_on_their_way")] = end.on_their_way;
  out[key(who + "_pids")] = pids.of(end.counting);
  out[key(who + "_locked_by")] = pids.of(end.locked_by);
  out[key(who + "s_wait")] = end.is_waited_at;
}

py::dict dict_of(const Pids& pids, const ChannelInfo& info) {
  py::dict out = described(info);
  if (!info.refused.empty()) return out;
  out["put"] = info.put;
  out["received"] = info.received;
  out["queued"] = info.queued;
  out["queued_bytes"] = info.queued_bytes;
  out["taken"] = info.taken;
  out["returned"] = info.returned;
  out["rejected"] = info.rejected;
  out["dropped"] = info.dropped;
  out["unfinished"] = info.unfinished;
  out["capacity"] = info.capacity;
  out["limit"] = info.limit;
  out["max_bytes"] = info.max_bytes;
  out["max_unsettled"] = info.max_unsettled;
  out["max_attempts"] = info.max_attempts;
  out["on_peer_death"] = word_of(info.ending);
  out["allow_pickle"] = info.allow_pickle;
  out["keep_open"] = info.keep_open;
  out["drop_oldest"] = info.drop_oldest;
  out["shut_down"] = info.shutdown != channel::Shutdown::kNot;
  out["full_seconds"] = static_cast<double>(info.ends[End::kSending].slept_ns) / kPerSecond;
  out["empty_seconds"] = static_cast<double>(info.ends[End::kReceiving].slept_ns) / kPerSecond;
  add_end(pids, info.ends[End::kSending], "sender", out);
  add_end(pids, info.ends[End::kReceiving], "receiver", out);
  return out;
}

py::dict dict_of(const Pids& pids, const LatestInfo& info) {
  py::dict out = described(info);
  if (!info.refused.empty()) return out;
  out["version"] = info.version;
  out["history"] = info.history;
  out["publishers"] = pids.of(info.publishers);
  return out;
}

py::dict dict_of(const Pids& pids, const BroadcastInfo& info) {
  py::dict out = described(info);
  if (!info.refused.empty()) return out;
  out["put"] = info.put;
  out["capacity"] = info.capacity;
  out["history"] = info.history;
  out["kept"] = info.kept;
  out["publishers"] = pids.of(info.publishers);
  py::list readers;
  for (const CursorInfo& one : info.cursors) {
    readers.append(py::dict("pid"_a = pids.of(one.slot), "behind"_a = info.put - std::min(info.put, one.position),
                            "missed"_a = one.missed, "blocks"_a = one.blocks));
  }
  out["subscribers"] = readers;
  return out;
}

py::dict dict_of(const Pids& pids, const ReplayInfo& info) {
  py::dict out = described(info);
  if (!info.refused.empty()) return out;
  out["rows"] = info.rows;
  out["capacity"] = info.capacity;
  out["record_bytes"] = info.record_bytes;
  out["chunks"] = info.chunks;
  out["chunks_opened"] = info.chunks_opened;
  out["locked_by"] = pids.of(info.locked_by);
  return out;
}

template <class Thing>
py::list dicts_of(const Pids& pids, const std::vector<Thing>& things) {
  py::list out;
  for (const Thing& thing : things) out.append(dict_of(pids, thing));
  return out;
}

py::list waits_of(const Pids& pids, const ParticipantInfo& info) {
  py::list out;
  for (const WaitInfo& one : info.waits) {
    out.append(py::dict("what"_a = word_of(one.what), "block"_a = one.block, "lock_owner"_a = pids.of(one.owner),
                        "thread"_a = one.thread, "seconds"_a = static_cast<double>(one.waited_ns) / kPerSecond));
  }
  return out;
}

py::list participants_of(const Pids& pids, const ArenaInfo& info) {
  py::list out;
  for (const ParticipantInfo& one : info.participants) {
    out.append(py::dict("pid"_a = one.pid, "said_pid"_a = one.said_pid, "alive"_a = one.alive,
                        "stopped"_a = one.stopped, "leaving"_a = one.leaving, "pinned"_a = one.pinned,
                        "seconds"_a = static_cast<double>(one.attached_ns) / kPerSecond,
                        "waits"_a = waits_of(pids, one)));
  }
  return out;
}

py::list holders_of(const Pids& pids, const ArenaInfo& info) {
  py::list out;
  for (const HolderInfo& one : info.holders) {
    out.append(py::dict("pid"_a = pids.of(one.slot), "bytes"_a = one.bytes, "blocks"_a = one.blocks,
                        "seconds"_a = static_cast<double>(one.held_ns) / kPerSecond));
  }
  return out;
}

py::dict dict_of(const ArenaInfo& info) {
  const Pids pids(info);
  py::list openers;
  for (const Opener& one : info.openers) openers.append(py::dict("pid"_a = one.pid, "fd"_a = one.fd));
  py::dict out("uuid"_a = py::bytes(reinterpret_cast<const char*>(info.uuid), sizeof info.uuid).attr("hex")(),
               "names"_a = names_in(info.names), "refused"_a = reason(info.refused), "openers"_a = openers);
  if (!info.refused.empty()) return out;
  out["consistent"] = info.still;
  out["needs_recovery"] = info.needs_recovery;
  out["max_bytes"] = info.max_bytes;
  out["committed_bytes"] = info.committed_bytes;
  out["used_bytes"] = info.used_bytes;
  out["held_bytes"] = info.held_bytes;
  out["blocks"] = info.blocks;
  out["reconciles"] = info.reconciles;
  out["locked_by"] = pids.of(info.locked_by);
  out["participants"] = participants_of(pids, info);
  out["holders"] = holders_of(pids, info);
  out["channels"] = dicts_of(pids, info.channels);
  out["latests"] = dicts_of(pids, info.latests);
  out["broadcasts"] = dicts_of(pids, info.broadcasts);
  out["replays"] = dicts_of(pids, info.replays);
  return out;
}

py::list look() {
  const std::vector<ArenaInfo> arenas = without_gil([] { return look_at_all(); });
  py::list out;
  for (const ArenaInfo& info : arenas) out.append(dict_of(info));
  return out;
}

py::list look_at_messages_of(const std::string& uuid, std::uint64_t block, std::size_t most, std::uint64_t most_bytes) {
  if (uuid.size() != 16) throw py::value_error("an arena's uuid has 16 bytes, this has " + std::to_string(uuid.size()));
  auto looked = without_gil(
      [&] { return look_at_queue(reinterpret_cast<const unsigned char*>(uuid.data()), block, most, most_bytes); });
  py::list out;
  for (const MessageInfo& one : unwrap(std::move(looked))) {
    py::object sender = py::none();
    if (one.sender) sender = py::int_(*one.sender);
    out.append(py::make_tuple(one.ticket, one.bytes, sender,
                              py::bytes(reinterpret_cast<const char*>(one.frame.data()), one.frame.size())));
  }
  return out;
}

}  // namespace

void bind_observe(py::module_& module) {
  module.def("look", &look);
  module.def("look_at_queue", &look_at_messages_of, "uuid"_a, "block"_a, "most"_a, "most_bytes"_a);
}

}  // namespace shmtree::python
