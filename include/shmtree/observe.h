/// @file
/// Looking into this user's arenas from outside, without taking part in them: who holds what, what is queued, who waits
/// for whom, which end limits.
///
///     for (const shmtree::ObservedArena& arena : shmtree::observe()) {
///       for (const shmtree::ObservedChannel& channel : arena.channels) {
///         std::cout << channel.name() << ": " << channel.queued << " of " << channel.capacity << '\n';
///       }
///     }
///
/// The same as shmtree.observe() of Python, word for word: docs/observe.md says what can be seen, and what cannot.
/// Nobody is asked for anything or held up: a look takes no slot in an arena and no lock, and has its file open for
/// reading alone. So it works while those who use it are stopped, or were killed, and changes nothing, whenever it is
/// killed.
///
/// Ownership: values, of no use but to be looked at. Processes have the numbers that they have here; 0 is one out of
/// sight, as in another PID namespace. Times are in seconds. Errors: what could not be read says why in `refused`, and
/// has nothing else then; there is no other error. A look needs two free descriptors; with fewer, all that it shows
/// is one arena without a uuid that was refused for it. Thread safety: any thread; an Observer is used by one at a
/// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shmtree {

/// A process that has an arena's file open.
struct ObservedOpener {
  int pid = 0;             ///< its number
  int fd = -1;             ///< one of its descriptors of the file
  bool read_only = false;  ///< it only looks, as an observer does; shown where nobody else has the arena any more
};

/// A thread that sleeps in a call.
struct ObservedWait {
  /// "message", "room", "memory", "acknowledgements", "tasks", "reservation", "newer version", "rows", "rate limit",
  /// "array", "lock".
  std::string_view what{};
  std::uint64_t block = 0;               ///< of what it sleeps at; 0: the arena
  std::optional<int> lock_owner{};       ///< the process that has the lock that it sleeps for
  int thread = 0;                        ///< its number, as its process has it
  double seconds = 0.0;                  ///< for which it has slept
  std::optional<std::size_t> channel{};  ///< at which it sleeps, by its place in ObservedArena::channels
  std::string at{};                      ///< the same in words
};

/// Who takes part in an arena, or did so until it was killed.
struct ObservedParticipant {
  std::uint32_t slot = 0;             ///< its place, which another has when it has gone
  int pid = 0;                        ///< its number here; 0 also of one that was killed
  int said_pid = 0;                   ///< as it has written it itself, in its own PID namespace
  bool alive = false;                 ///< false: it was killed, and nobody has cleaned up after it yet
  bool stopped = false;               ///< known of those in sight
  bool leaving = false;               ///< it is about to exit
  bool pinned = false;                ///< it has shown the arena's memory to a device
  double seconds = 0.0;               ///< since it came
  std::vector<ObservedWait> waits{};  ///< up to eight; of one that was killed, those that it died in
};

/// What one participant holds of messages and arrays.
struct ObservedHolder {
  int pid = 0;               ///< of the process
  std::uint64_t bytes = 0;   ///< that it holds
  std::uint64_t blocks = 0;  ///< in so many blocks
  double seconds = 0.0;      ///< of the one that it has held for longest
};

/// What everything in an arena has.
struct ObservedThing {
  std::uint64_t block = 0;           ///< where it lies: tells it apart from others in its arena
  std::vector<std::string> names{};  ///< bytes, as they were given
  std::string refused{};             ///< why it could not be read: then nothing else is known of it. Empty: it was read
  bool consistent = true;            ///< false: it changed at each look, and its numbers need not be of one moment

  /// The first of its names; empty without one.
  std::string_view name() const noexcept { return names.empty() ? std::string_view() : names.front(); }
};

/// One end of a channel.
struct ObservedEnd {
  std::uint64_t members = 0;       ///< living processes that have it
  std::vector<int> pids{};         ///< of these, those that take part: they have not only used the other end
  std::vector<int> unused{};       ///< of these, those that have never used it
  std::uint64_t on_their_way = 0;  ///< ends that were given away, and have not arrived
  std::optional<int> locked_by{};  ///< who puts, or receives, at this moment
  bool waits = false;              ///< somebody may sleep there: for room, or for messages

  /// Those of `pids` that have used it.
  std::vector<int> users() const;
};

/// The end of a channel that the other one waits for.
struct ObservedLimit {
  std::string_view end{};   ///< "sending", "receiving"
  std::vector<int> pids{};  ///< who has used it, or all that have it where nobody has
};

/// A channel or queue. The counts are those of ChannelStats (pair.h).
struct ObservedChannel : ObservedThing {
  std::uint64_t put = 0;             ///< messages so far
  std::uint64_t received = 0;        ///< messages so far
  std::uint64_t queued = 0;          ///< messages that wait to be received, those that came back included
  std::uint64_t queued_bytes = 0;    ///< of these
  std::uint64_t taken = 0;           ///< messages that are taken, and not settled
  std::uint64_t returned = 0;        ///< messages that came back, and wait
  std::uint64_t rejected = 0;        ///< messages that were given up, and wait in the channel of these
  std::uint64_t dropped = 0;         ///< messages that made room for newer ones, so far
  std::uint64_t unfinished = 0;      ///< tasks of a queue that are not done
  std::uint64_t capacity = 0;        ///< messages; 0: no limit
  std::uint64_t max_bytes = 0;       ///< of queued messages; 0: no limit
  std::uint64_t max_unsettled = 0;   ///< messages that are taken; 0: no limit
  std::uint64_t max_attempts = 0;    ///< times that a message is taken; 0: no limit
  std::uint64_t limit = 0;           ///< messages that it takes at the moment; 0: no limit
  std::string_view on_peer_death{};  ///< "raise", "wait", "each", "never"
  bool allow_pickle = false;         ///< it takes pickles
  bool keep_open = false;            ///< it does not end with its last sender
  bool drop_oldest = false;          ///< a put that finds no room drops the oldest messages
  bool shut_down = false;            ///< as a queue is
  double full_seconds = 0.0;         ///< in which somebody slept for room, since it was made
  double empty_seconds = 0.0;        ///< in which somebody slept for messages, since it was made
  ObservedEnd senders{};             ///< who puts
  ObservedEnd receivers{};           ///< who receives

  double put_per_s = 0.0;       ///< since the last look of the Observer; 0 at a first one
  double received_per_s = 0.0;  ///< the same, with what was dropped
  double full_share = 0.0;      ///< of the time since the last look, from 0 to 1
  double empty_share = 0.0;     ///< the same
  double oldest_seconds = 0.0;  ///< for which the oldest message has been there, at least, as looks before have seen
  /// The end that the other one waited for most of the time since the last look; or, where nobody slept, the receiving
  /// one of a full channel, and the sending one of an empty one at which somebody waits. Else nothing.
  std::optional<ObservedLimit> limiting{};
};

/// A Latest.
struct ObservedLatest : ObservedThing {
  std::uint64_t version = 0;      ///< the newest; 0: none yet
  std::uint64_t history = 0;      ///< versions that are kept besides
  std::vector<int> publishers{};  ///< the processes that publish
};

/// Who reads a Broadcast.
struct ObservedSubscriber {
  std::optional<int> pid{};  ///< nothing: nobody has used the subscription yet
  std::uint64_t behind = 0;  ///< messages that it has not read
  std::uint64_t missed = 0;  ///< messages that were overwritten before, or given up
  bool blocks = false;       ///< those who put wait for it
};

/// A Broadcast.
struct ObservedBroadcast : ObservedThing {
  std::uint64_t put = 0;                          ///< messages so far
  std::uint64_t capacity = 0;                     ///< messages that a slow subscriber may be behind
  std::uint64_t history = 0;                      ///< messages that are kept for newcomers
  std::uint64_t kept = 0;                         ///< messages that are there
  std::vector<int> publishers{};                  ///< the processes that put
  std::vector<ObservedSubscriber> subscribers{};  ///< who reads
};

/// A replay buffer.
struct ObservedReplay : ObservedThing {
  std::uint64_t rows = 0;           ///< that can be drawn
  std::uint64_t capacity = 0;       ///< rows
  std::uint64_t record_bytes = 0;   ///< of a row
  std::uint64_t chunks = 0;         ///< that are there
  std::uint64_t chunks_opened = 0;  ///< so far
  std::optional<int> locked_by{};   ///< a process
};

/// An arena that a process of this user has open, or that is only known by a name.
struct ObservedArena {
  std::string uuid{};                     ///< 32 hexadecimal digits; zeros of one that could not be opened
  std::vector<std::string> names{};       ///< of itself and of arrays in it
  std::string refused{};                  ///< why it could not be read: then only who has it is known
  std::vector<ObservedOpener> openers{};  ///< who has its file open
  bool consistent = true;                 ///< its own counts are of one moment
  bool needs_recovery = false;            ///< somebody was found dead: counts are not right until it is repaired
  std::uint64_t max_bytes = 0;            ///< its budget
  std::uint64_t committed_bytes = 0;      ///< of memory that it has
  std::uint64_t used_bytes = 0;           ///< of blocks in use
  std::uint64_t held_bytes = 0;           ///< of messages and arrays that somebody holds
  std::uint64_t blocks = 0;               ///< in use
  std::uint64_t reconciles = 0;           ///< times that somebody cleaned up after the dead
  std::optional<int> locked_by{};         ///< the process that has its lock
  std::vector<ObservedParticipant> participants{};  ///< those that are, or that a kill has left
  std::vector<ObservedHolder> holders{};            ///< who holds memory
  std::vector<ObservedChannel> channels{};          ///< channels and queues
  std::vector<ObservedLatest> latests{};            ///< what there is of each kind
  std::vector<ObservedBroadcast> broadcasts{};      ///< the same
  std::vector<ObservedReplay> replays{};            ///< the same

  /// The first of its names; empty without one.
  std::string_view name() const noexcept { return names.empty() ? std::string_view() : names.front(); }
};

/// Looks again and again, for what only two looks can tell: rates, shares of the time, and how long messages have
/// waited.
class Observer {
 public:
  /// One that has not looked yet. Throws std::bad_alloc.
  Observer();
  /// What it knew of looks before is forgotten.
  ~Observer();
  /// Leaves the other one empty: its look() throws BadResult (kClosed) until another observer is assigned to it.
  Observer(Observer&& other) noexcept;
  /// The same.
  Observer& operator=(Observer&& other) noexcept;

  /// Every arena that a process of this user has open, those that could not be read last. Throws std::bad_alloc.
  std::vector<ObservedArena> look();

 private:
  struct Past;
  std::unique_ptr<Past> past_;
};

/// What a first look sees. Throws std::bad_alloc.
std::vector<ObservedArena> observe();

}  // namespace shmtree
