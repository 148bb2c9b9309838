// Who adds rows to a replay buffer, and who draws them: for those who wait for one of these and are to be told when all
// of them were killed. docs/replay-layout.md has the words and the order of stores.
//
// Invariants:
//   - A process is in the words from before what it does first until after what it does last, or its end in order. So
//     one that is in them and dead was killed.
//   - It leaves when the last of its objects has ended that began. A forked child's begin anew.
//
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory/publishers.h"
#include "platform/fork.h"

namespace shmtree::replay {

class Store;

struct AttendanceWords {
  memory::PublisherWords adders, drawers;
};
static_assert(sizeof(AttendanceWords) == 16384 && offsetof(AttendanceWords, drawers) == 8192);

// Those who add, or those who draw: of this process, as objects; of all others, by their words.
class Side {
 public:
  // `did`: what they did, for messages.
  Side(memory::Arena& arena, memory::PublisherWords& words, const char* did) noexcept
      : arena_(arena), words_(arena.participants(), words), did_(did) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  Result<memory::Identity> identity() { return arena_.identity(); }
  memory::Identity current_identity() const noexcept { return arena_.current_identity(); }
  // One more object of this process, and one less.
  void join(memory::Identity me) noexcept;
  void part(memory::Identity me) noexcept;
  // Of all of them.
  void leave() noexcept { words_.leave(); }
  // kPeerDied, with their pids, when some were killed and nobody is left.
  Status check() const { return words_.check(false, did_); }

 private:
  bool has_objects(memory::Identity me) noexcept;
  void enter(memory::Identity me) noexcept;

  memory::Arena& arena_;
  memory::Publishers words_;
  const char* const did_;
  platform::ForkSafeMutex mutex_;
  memory::Identity counted_ = memory::kNobody;  // whose objects those are; under mutex_
  std::uint64_t objects_ = 0;                   // under mutex_
};

// What an object has to do with a side. Without one it does nothing.
class Attending {
 public:
  explicit Attending(Side* side) noexcept : side_(side) {}
  ~Attending() { end(); }
  Attending(const Attending&) = delete;
  Attending& operator=(const Attending&) = delete;

  // Before each thing that it does; the first one, in each process, is what counts. Errors as of Arena::identity().
  Status begin() { return side_ == nullptr ? success() : begin_on_side(); }
  // After the last. It may begin again.
  void end() noexcept;

 private:
  Status begin_on_side();

  Side* const side_;
  std::atomic<memory::Identity> as_{memory::kNobody};
};

class Attendance {
 public:
  // This process's own of that buffer, of which all its objects are counted together. `words` are the buffer's.
  static std::shared_ptr<Attendance> of(std::shared_ptr<Store> store, AttendanceWords& words);
  ~Attendance();
  // This process is about to end in order: whatever its threads still do, it neither adds nor draws any more.
  static void leave_all() noexcept;

  Side& adders() noexcept { return adders_; }
  Side& drawers() noexcept { return drawers_; }

 private:
  Attendance(std::shared_ptr<Store> store, AttendanceWords& words) noexcept;

  const std::shared_ptr<Store> store_;  // which has the words
  Side adders_, drawers_;
};

// Who waits in a call of the buffer at present, for who asks how it stands.
// Process ids in order, each once however many of its threads wait; none of the dead.
struct Waiters {
  std::vector<int> adding{};   // for others to draw, as the rate limit wants
  std::vector<int> drawing{};  // for others to add
};

Waiters waiters_of(const Store& store);

}  // namespace shmtree::replay
