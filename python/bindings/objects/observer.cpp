// Converts the snapshots of an observer to dicts.
#include "observe/observer.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "discovery/handle.h"
#include "shmtree/base/observe.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;

namespace {

// Names may not be valid UTF-8. Python decodes file names in the same way.
py::object text(const std::string& name) {
  return own(PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
}
py::object reason(const std::string& refused) {
  return refused.empty() ? py::object(py::none()) : text(refused);
}
py::list texts(const std::vector<std::string>& names) {
  py::list out;
  for (const std::string& name : names) out.append(text(name));
  return out;
}
py::object first_of(const std::vector<std::string>& names) {
  return names.empty() ? py::object(py::none()) : text(names.front());
}

py::dict described(const ObservedObject& object) {
  return py::dict("block"_a = object.block, "names"_a = texts(object.names), "refused"_a = reason(object.refused),
                  "consistent"_a = object.consistent);
}

void add_end(const ObservedEnd& end, const std::string& role, py::dict& out) {
  const auto key = [](const std::string& name) { return py::str(name); };
  out[key(role + "s")] = end.members;
  out[key(role + "s_attached")] = end.pids.size();
  out[key(role + "s_never_used")] = end.never_used;
  out[key(role + "s_in_transit")] = end.in_transit;
  out[key(role + "_pids")] = end.pids;
  out[key(role + "_locked_by")] = end.locked_by;
  out[key(role + "s_wait")] = end.waits;
}

void add_counts(const ObservedChannel& channel, py::dict& out) {
  out["put"] = channel.put;
  out["received"] = channel.received;
  out["queued"] = channel.queued;
  out["queued_bytes"] = channel.queued_bytes;
  out["taken"] = channel.taken;
  out["returned"] = channel.returned;
  out["dead_letters"] = channel.dead_letters;
  out["dropped"] = channel.dropped;
  out["unfinished"] = channel.unfinished;
  out["capacity"] = channel.capacity;
  out["limit"] = channel.limit;
  out["max_bytes"] = channel.max_bytes;
  out["max_unacked"] = channel.max_unacked;
  out["max_attempts"] = channel.max_attempts;
  out["on_peer_death"] = channel.on_peer_death;
  out["allow_pickle"] = channel.allow_pickle;
  const bool is_both = channel.keep_open == "both";
  out["keep_open"] = is_both ? py::object(py::str("both")) : py::bool_(channel.keep_open != "no");
  out["drop_oldest"] = channel.drop_oldest;
  out["shut_down"] = channel.shut_down;
  out["full_seconds"] = channel.full_seconds;
  out["empty_seconds"] = channel.empty_seconds;
}

py::object dict_of(const std::optional<ObservedLimit>& limit) {
  if (!limit) return py::none();
  return py::dict("end"_a = limit->end, "pids"_a = limit->pids);
}

py::dict dict_of(const ObservedChannel& channel) {
  py::dict out = described(channel);
  if (!channel.refused.empty()) {
    out["name"] = first_of(channel.names);
    return out;
  }
  add_counts(channel, out);
  add_end(channel.senders, "sender", out);
  add_end(channel.receivers, "receiver", out);
  out["name"] = first_of(channel.names);
  out["put_per_s"] = channel.put_per_s;
  out["received_per_s"] = channel.received_per_s;
  out["oldest_seconds"] = channel.oldest_seconds;
  out["full_share"] = channel.full_share;
  out["empty_share"] = channel.empty_share;
  out["limiting"] = dict_of(channel.limiting);
  return out;
}

py::dict dict_of(const ObservedLatest& latest) {
  py::dict out = described(latest);
  if (!latest.refused.empty()) return out;
  out["version"] = latest.version;
  out["history"] = latest.history;
  out["publishers"] = latest.publishers;
  return out;
}

py::dict dict_of(const ObservedSubscriber& subscriber) {
  return py::dict("pid"_a = subscriber.pid, "behind"_a = subscriber.behind, "missed"_a = subscriber.missed,
                  "blocks"_a = subscriber.blocks);
}

py::dict dict_of(const ObservedReplay& replay) {
  py::dict out = described(replay);
  if (!replay.refused.empty()) return out;
  out["rows"] = replay.rows;
  out["capacity"] = replay.capacity;
  out["record_bytes"] = replay.record_bytes;
  out["chunks"] = replay.chunks;
  out["chunks_opened"] = replay.chunks_opened;
  out["locked_by"] = replay.locked_by;
  return out;
}

py::dict dict_of(const ObservedOpener& opener) {
  return py::dict("pid"_a = opener.pid, "fd"_a = opener.fd, "read_only"_a = opener.read_only);
}

py::dict dict_of(const ObservedHolder& holder) {
  return py::dict("pid"_a = holder.pid, "bytes"_a = holder.bytes, "blocks"_a = holder.blocks,
                  "seconds"_a = holder.seconds);
}

py::dict dict_of(const ObservedBroadcast& broadcast);
py::dict dict_of(const ObservedArena& arena);

template <class One>
py::list dicts_of(const std::vector<One>& all) {
  py::list out;
  for (const One& one : all) out.append(dict_of(one));
  return out;
}

py::dict dict_of(const ObservedBroadcast& broadcast) {
  py::dict out = described(broadcast);
  if (!broadcast.refused.empty()) return out;
  out["put"] = broadcast.put;
  out["capacity"] = broadcast.capacity;
  out["history"] = broadcast.history;
  out["kept"] = broadcast.kept;
  out["publishers"] = broadcast.publishers;
  out["subscribers"] = dicts_of(broadcast.subscribers);
  return out;
}

// Returns the name of the channel at which the thread waits, or its number if it has no name.
py::object channel_of(const ObservedWait& wait, const ObservedArena& arena) {
  if (!wait.channel) return py::none();
  const ObservedChannel& channel = arena.channels[*wait.channel];
  return channel.names.empty() ? py::object(py::int_(*wait.channel)) : text(channel.names.front());
}

py::list dicts_of(const std::vector<ObservedWait>& waits, const ObservedArena& arena) {
  py::list out;
  for (const ObservedWait& one : waits) {
    out.append(py::dict("what"_a = one.what, "block"_a = one.block, "lock_owner"_a = one.lock_owner,
                        "thread"_a = one.thread, "seconds"_a = one.seconds, "channel"_a = channel_of(one, arena),
                        "at"_a = text(one.at)));
  }
  return out;
}

py::list participants_of(const ObservedArena& arena) {
  py::list out;
  for (const ObservedParticipant& one : arena.participants) {
    out.append(py::dict("slot"_a = one.slot, "pid"_a = one.pid, "namespace_pid"_a = one.namespace_pid,
                        "name"_a = text(one.name), "alive"_a = one.alive, "stopped"_a = one.stopped,
                        "leaving"_a = one.leaving, "pinned"_a = one.pinned, "seconds"_a = one.seconds,
                        "waits"_a = dicts_of(one.waits, arena)));
  }
  return out;
}

void add_contents(const ObservedArena& arena, py::dict& out) {
  out["consistent"] = arena.consistent;
  out["needs_recovery"] = arena.needs_recovery;
  out["max_bytes"] = arena.max_bytes;
  out["committed_bytes"] = arena.committed_bytes;
  out["used_bytes"] = arena.used_bytes;
  out["held_bytes"] = arena.held_bytes;
  out["blocks"] = arena.blocks;
  out["reconciles"] = arena.reconciles;
  out["locked_by"] = arena.locked_by;
  out["participants"] = participants_of(arena);
  out["holders"] = dicts_of(arena.holders);
  out["channels"] = dicts_of(arena.channels);
  out["latests"] = dicts_of(arena.latests);
  out["broadcasts"] = dicts_of(arena.broadcasts);
  out["replays"] = dicts_of(arena.replays);
}

py::dict dict_of(const ObservedArena& arena) {
  py::dict out("uuid"_a = arena.uuid, "names"_a = texts(arena.names), "refused"_a = reason(arena.refused),
               "openers"_a = dicts_of(arena.openers));
  if (arena.refused.empty()) add_contents(arena, out);
  out["name"] = first_of(arena.names);
  return out;
}

// Wraps an Observer and rejects calls from two threads at once.
class PythonObserver {
 public:
  py::dict look() {
    if (looks_.exchange(true))
      throw std::runtime_error("another thread is using this observer: use one for each thread");
    const Busy busy{looks_};
    const std::vector<ObservedArena> arenas = without_gil([this] { return observer_.look(); });
    ++snapshots_;
    return py::dict("arenas"_a = dicts_of(arenas));
  }
  // Does not block, even while another thread takes a snapshot.
  std::string repr() const {
    const std::uint64_t count = snapshots_;
    return "<Observer, " + std::to_string(count) + (count == 1 ? " snapshot>" : " snapshots>");
  }

 private:
  struct Busy {
    std::atomic<bool>& looks;
    ~Busy() { looks = false; }
  };

  Observer observer_;
  std::atomic<bool> looks_{false};
  std::atomic<std::uint64_t> snapshots_{0};
};

const unsigned char* checked(const std::string& uuid) {
  if (uuid.size() != 16)
    throw py::value_error("the uuid of an arena must have 16 bytes; this has " + std::to_string(uuid.size()));
  return reinterpret_cast<const unsigned char*>(uuid.data());
}

int open_arena_for_reading(const std::string& uuid, int pid, int fd) {
  const unsigned char* const id = checked(uuid);
  return unwrap(without_gil([&] { return discovery::open_file_of(pid, fd, id, platform::Access::kRead); })).release();
}

py::list snapshot_messages_of(const std::string& uuid, std::uint64_t block, std::size_t most, std::uint64_t max_bytes) {
  const unsigned char* const id = checked(uuid);
  auto looked = without_gil([&] { return observer::snapshot_queue(id, block, most, max_bytes); });
  py::list out;
  for (const observer::MessageInfo& one : unwrap(std::move(looked))) {
    out.append(py::make_tuple(one.ticket, one.bytes, one.sender,
                              py::bytes(reinterpret_cast<const char*>(one.frame.data()), one.frame.size())));
  }
  return out;
}

}  // namespace

void bind_observer(py::module_& module) {
  py::class_<PythonObserver> observer(module, "Observer", plain_class());
  observer.attr("__module__") = "shmtree";  // before def(), which writes it into the docstrings
  observer.def(py::init<>()).def("__repr__", &PythonObserver::repr).def("look", &PythonObserver::look);
  module.def("open_arena_for_reading", &open_arena_for_reading, "uuid"_a, "pid"_a, "fd"_a);
  module.def("look_at_queue", &snapshot_messages_of, "uuid"_a, "block"_a, "most"_a, "most_bytes"_a);
}

}  // namespace shmtree::python
