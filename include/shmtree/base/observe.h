/// @file
/// Inspects this user's arenas from outside, without attaching to them. Shows which process holds which memory, which
/// messages are queued, which thread waits for which process, and which end limits the throughput.
///
///     for (const shmtree::ObservedArena& arena : shmtree::observe()) {
///       for (const shmtree::ObservedChannel& channel : arena.channels) {
///         std::cout << channel.name() << ": " << channel.queued << " of " << channel.capacity << '\n';
///       }
///     }
///
/// Returns the same data as shmtree.observe() of Python. docs/observe.md describes what can be seen. A snapshot sends
/// no request to another process and blocks none: it takes no lock and no slot in an arena, and opens the file
/// read-only. So it works while the attached processes are stopped or dead. An observer changes nothing, even if it is
/// killed at any time.
///
/// Ownership: all results are plain values. Process ids are those of the observer's PID namespace; 0 is a process that
/// is not visible here, such as one in another PID namespace. Times are in seconds.
///
/// Errors: an object that could not be read has the reason in `refused`, and no other data. There are no other errors.
/// A snapshot needs two free descriptors. If the process has fewer, the snapshot contains one arena without a uuid, and
/// its `refused` has the reason.
///
/// Thread safety: any thread; an Observer is for one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shmtree {

/// A process that has the file of an arena open.
struct ObservedOpener {
  int pid = 0;             ///< Process id.
  int fd = -1;             ///< One of its descriptors of the file.
  bool read_only = false;  ///< True if the process only reads, as an observer does. Such a process is listed only if no
                           ///< other process has the arena open.
};

/// A thread that sleeps in a call.
struct ObservedWait {
  /// The reason: "message", "space", "memory", "acknowledgements", "tasks", "reservation", "newer version", "rows",
  /// "rate limit", "array", "lock".
  std::string_view what{};
  std::uint64_t block = 0;               ///< Block number of the object at which the thread sleeps. 0: the arena.
  std::optional<int> lock_owner{};       ///< Process that owns the lock for which the thread waits.
  int thread = 0;                        ///< Thread id, in the namespace of its process.
  double seconds = 0.0;                  ///< Time for which the thread has slept.
  std::optional<std::size_t> channel{};  ///< Index of the channel at which it sleeps in ObservedArena::channels.
  std::string at{};                      ///< The channel or object in words.
};

/// A process that is attached to an arena, or was until it was killed.
struct ObservedParticipant {
  std::uint32_t slot = 0;  ///< Index in the participant table. It is reused after the process has detached.
  int pid = 0;             ///< Process id as seen here. 0 also for a process that was killed.
  int namespace_pid = 0;   ///< Process id as the process itself stored it, in its own PID namespace.
  std::string name{};      ///< Name of the process in multiprocessing, truncated to 48 bytes. Empty for C++ programs.
  bool alive = false;      ///< False: the process was killed, and recovery has not run yet.
  bool stopped = false;    ///< The process is stopped (SIGSTOP). Known only for visible processes.
  bool leaving = false;    ///< The process is about to exit.
  bool pinned = false;     ///< The process has registered pages of the arena for DMA by a device.
  double seconds = 0.0;    ///< Time since the process attached.
  std::vector<ObservedWait> waits{};  ///< Up to eight sleeping threads, or those that slept when it was killed.
};

/// Memory of messages and arrays that one participant holds.
struct ObservedHolder {
  int pid = 0;               ///< Process id.
  std::uint64_t bytes = 0;   ///< Bytes that it holds.
  std::uint64_t blocks = 0;  ///< Number of blocks that it holds.
  double seconds = 0.0;      ///< Time for which it has held its oldest block.
};

/// The part that all objects in an arena have in common.
struct ObservedObject {
  std::uint64_t block = 0;           ///< Block of the object, which identifies it in its arena.
  std::vector<std::string> names{};  ///< Its names, as bytes.
  /// The reason why the object could not be read; all other members are then unset. Empty if it was read.
  std::string refused{};
  bool consistent = true;  ///< False: the object changed during each read, so its numbers may not match.

  /// Returns the first name; empty if there is none.
  std::string_view name() const& noexcept { return names.empty() ? std::string_view() : names.front(); }
  /// Returns a copy, since the object is a temporary.
  std::string name() && { return std::string(name()); }
};

/// One end of a channel.
struct ObservedEnd {
  std::uint64_t members = 0;  ///< Number of live processes that have the end open.
  std::vector<int> pids{};    ///< Ids of those processes that are attached to the end. A process that has used only the
                              ///< other end is not.
  std::vector<int> never_used{};   ///< The processes of `pids` that have never used the end.
  std::uint64_t in_transit = 0;    ///< Number of ends in transit: passed on and not yet opened.
  std::optional<int> locked_by{};  ///< Process that is putting or receiving at this moment.
  bool waits = false;              ///< A process may be asleep at this end, waiting for space or for messages.

  /// Returns the members of `pids` that have used the end.
  std::vector<int> users() const;
};

/// The end of a channel for which the other end waits.
struct ObservedLimit {
  std::string_view end{};   ///< "sender" or "receiver".
  std::vector<int> pids{};  ///< Processes that have used the end. If none has, all processes that are attached.
};

/// A channel or queue. The counts are those of ChannelStats (pair.h).
struct ObservedChannel : ObservedObject {
  std::uint64_t put = 0;             ///< Messages put so far.
  std::uint64_t received = 0;        ///< Messages received so far.
  std::uint64_t queued = 0;          ///< Messages that can be received, including returned ones.
  std::uint64_t queued_bytes = 0;    ///< Bytes of the queued messages.
  std::uint64_t taken = 0;           ///< Unacked messages.
  std::uint64_t returned = 0;        ///< Messages that were returned and wait for redelivery.
  std::uint64_t dead_letters = 0;    ///< Messages in dead_letters().
  std::uint64_t dropped = 0;         ///< Messages dropped so far to make space for newer ones.
  std::uint64_t unfinished = 0;      ///< Tasks of a queue that are not done.
  std::uint64_t capacity = 0;        ///< Maximum number of messages. 0: unlimited.
  std::uint64_t max_bytes = 0;       ///< Maximum bytes of queued messages. 0: unlimited.
  std::uint64_t max_unacked = 0;     ///< Maximum number of unacked messages. 0: unlimited.
  std::uint64_t max_attempts = 0;    ///< Maximum number of deliveries of a message. 0: unlimited.
  std::uint64_t limit = 0;           ///< Number of messages that it accepts at the moment. 0: unlimited.
  std::string_view on_peer_death{};  ///< "raise", "wait", "each" or "never".
  bool allow_pickle = false;         ///< Pickles are allowed.
  std::string_view keep_open{};      ///< "no", "receivers" (they wait for new senders) or "both".
  bool drop_oldest = false;          ///< A put into the full channel drops the oldest messages.
  bool shut_down = false;            ///< The queue was shut down.
  double full_seconds = 0.0;         ///< Time since creation during which a sender slept for space.
  double empty_seconds = 0.0;        ///< Time since creation during which a receiver slept for messages.
  ObservedEnd senders{};             ///< The end of the senders.
  ObservedEnd receivers{};           ///< The end of the receivers.

  double put_per_s = 0.0;       ///< Messages put per second since the last snapshot. 0 in the first snapshot.
  double received_per_s = 0.0;  ///< Messages received or dropped per second, over the same time.
  double full_share = 0.0;      ///< Share of the time since then in which a sender slept for space, from 0 to 1.
  double empty_share = 0.0;     ///< Same for `empty_seconds`.
  double oldest_seconds = 0.0;  ///< Lower bound of the age of the oldest message, derived from earlier snapshots.
  /// The end for which the other one waited for most of the time since the last snapshot. If no process slept, it is
  /// the receiver of a full channel, or the sender of an empty channel at which a process waits. Otherwise nullopt.
  std::optional<ObservedLimit> limiting{};
};

/// A Latest.
struct ObservedLatest : ObservedObject {
  std::uint64_t version = 0;      ///< Number of the newest version. 0: none yet.
  std::uint64_t history = 0;      ///< Versions kept besides the newest.
  std::vector<int> publishers{};  ///< Process ids of the publishers.
};

/// A subscription of a Broadcast.
struct ObservedSubscriber {
  std::optional<int> pid{};  ///< Process id of the reader. nullopt: no process has used the subscription yet.
  std::uint64_t behind = 0;  ///< Messages that it has not read.
  std::uint64_t missed = 0;  ///< Messages that were overwritten before the subscriber read them, or given up.
  bool blocks = false;       ///< Publishers wait for it.
};

/// A Broadcast.
struct ObservedBroadcast : ObservedObject {
  std::uint64_t put = 0;                          ///< Messages put so far.
  std::uint64_t capacity = 0;                     ///< Messages that a slow subscriber may be behind.
  std::uint64_t history = 0;                      ///< Messages kept for later subscribers.
  std::uint64_t kept = 0;                         ///< Messages in the ring.
  std::vector<int> publishers{};                  ///< Process ids of the publishers.
  std::vector<ObservedSubscriber> subscribers{};  ///< The subscriptions.
};

/// A replay buffer.
struct ObservedReplay : ObservedObject {
  std::uint64_t rows = 0;           ///< Rows that can be sampled.
  std::uint64_t capacity = 0;       ///< Maximum number of rows.
  std::uint64_t record_bytes = 0;   ///< Size of a row.
  std::uint64_t chunks = 0;         ///< Chunks in the buffer.
  std::uint64_t chunks_opened = 0;  ///< Chunks opened so far.
  std::optional<int> locked_by{};   ///< Process that holds its lock.
};

/// An arena that a process of this user has open, or that is known only by a name.
struct ObservedArena {
  std::string uuid{};                     ///< 32 hexadecimal digits. Zeros: it could not be opened.
  std::vector<std::string> names{};       ///< Names of the arena and of arrays in it.
  std::string refused{};                  ///< The reason why it could not be read; only `openers` is known then.
  std::vector<ObservedOpener> openers{};  ///< Processes that have its file open.
  bool consistent = true;                 ///< True: the arena's own counts are of one moment.
  bool needs_recovery = false;            ///< A dead process was found. Counts are inexact until recovery has run.
  std::uint64_t max_bytes = 0;            ///< The budget.
  std::uint64_t committed_bytes = 0;      ///< Bytes of memory that are committed.
  std::uint64_t used_bytes = 0;           ///< Bytes of blocks in use.
  std::uint64_t held_bytes = 0;           ///< Bytes of messages and arrays that processes hold.
  std::uint64_t blocks = 0;               ///< Blocks in use.
  std::uint64_t reconciles = 0;           ///< Number of recoveries after the death of a process.
  std::optional<int> locked_by{};         ///< Process that holds its lock.
  std::vector<ObservedParticipant> participants{};  ///< Attached processes, and killed ones not yet removed.
  std::vector<ObservedHolder> holders{};            ///< Processes that hold memory.
  std::vector<ObservedChannel> channels{};          ///< Channels and queues.
  std::vector<ObservedLatest> latests{};            ///< All Latests.
  std::vector<ObservedBroadcast> broadcasts{};      ///< All Broadcasts.
  std::vector<ObservedReplay> replays{};            ///< All replay buffers.

  /// Returns the first name; empty if there is none.
  std::string_view name() const& noexcept { return names.empty() ? std::string_view() : names.front(); }
  /// Returns a copy, since the object is a temporary.
  std::string name() && { return std::string(name()); }
};

/// Takes repeated snapshots, and derives the values that need two snapshots: rates, shares of the time, and the age of
/// messages.
class Observer {
 public:
  /// Makes an observer that has taken no snapshot yet. Throws std::bad_alloc.
  Observer();
  /// Forgets earlier snapshots.
  ~Observer();
  /// Leaves the other observer empty: its look() throws BadResult (kClosed) until another observer is assigned to it.
  Observer(Observer&& other) noexcept;
  /// The same.
  Observer& operator=(Observer&& other) noexcept;

  /// Returns every arena that a process of this user has open. Arenas that could not be read come last. Throws
  /// std::bad_alloc.
  std::vector<ObservedArena> look();

 private:
  struct History;
  std::unique_ptr<History> history_;
};

/// Returns a first snapshot. Throws std::bad_alloc.
std::vector<ObservedArena> observe();

}  // namespace shmtree
