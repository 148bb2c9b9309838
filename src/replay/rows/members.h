// Tracks the processes that add rows to a replay buffer (its writers) and those that sample them (its samplers). A call
// that waits for one kind fails when all of that kind were killed. docs/internals/replay-layout.md has the words and
// the order of stores.
//
// Invariants:
//   - A process is listed from before its first operation until after its last one, or until it exits normally. So a
//     dead process that is listed was killed. One that exits by failure stays listed, with its exit code.
//   - A process leaves when its last object that joined has left. In a forked child no object has joined yet.
//
// Thread safety: any thread of any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "memory/publishers.h"
#include "platform/fork.h"

namespace shmtree::replay {

class Store;

struct BufferMemberWords {
  memory::PublisherWords writers, samplers;
};
static_assert(sizeof(BufferMemberWords) == 16384 && offsetof(BufferMemberWords, samplers) == 8192);

// The writers or the samplers of a buffer. Counts this process's objects, and reads the shared words of all others.
class Members {
 public:
  // `did` is what these processes did, for error messages.
  Members(memory::Arena& arena, memory::PublisherWords& words, const char* did) noexcept
      : arena_(arena), words_(arena.participants(), words), did_(did) {}
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  Result<memory::Identity> identity() { return arena_.identity(); }
  memory::Identity current_identity() const noexcept { return arena_.current_identity(); }
  // Register and unregister one object of this process.
  void join(memory::Identity me) noexcept;
  void part(memory::Identity me) noexcept;
  // Removes this process from the list, whatever its objects.
  void leave() noexcept { words_.leave(); }
  // Returns kPeerDied, with the pids, if processes were killed and none is left.
  Status check() const { return words_.check(memory::Publishers::Stream::kEndless, did_); }

 private:
  bool has_objects(memory::Identity me) noexcept;
  void enter(memory::Identity me) noexcept;

  memory::Arena& arena_;
  memory::Publishers words_;
  const char* const did_;
  platform::ForkSafeMutex mutex_;
  memory::Identity counted_ = memory::kNoIdentity;  // process that objects_ counts for; under mutex_
  std::uint64_t objects_ = 0;                       // under mutex_
};

// Membership of one object. With null members it does nothing.
class Membership {
 public:
  explicit Membership(Members* members) noexcept : members_(members) {}
  ~Membership() { end(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Call it before each operation of the object. The first call in each process joins. Errors: those of
  // Arena::identity().
  Status begin() { return members_ == nullptr ? success() : begin_as_member(); }
  // Call it after the last operation. The object may begin again later.
  void end() noexcept;

 private:
  Status begin_as_member();

  Members* const members_;
  std::atomic<memory::Identity> as_{memory::kNoIdentity};
};

class BufferMembers {
 public:
  // Returns the one instance that this process has for the buffer, which counts all its objects. `words` are in the
  // buffer.
  static std::shared_ptr<BufferMembers> of(std::shared_ptr<Store> store, BufferMemberWords& words);
  ~BufferMembers();
  // Removes this process from the lists of all buffers, because it is about to exit normally. Threads that still run
  // do not add it again.
  static void leave_all() noexcept;

  Members& writers() noexcept { return writers_; }
  Members& samplers() noexcept { return samplers_; }

 private:
  BufferMembers(std::shared_ptr<Store> store, BufferMemberWords& words) noexcept;

  const std::shared_ptr<Store> store_;  // keeps the words mapped
  Members writers_, samplers_;
};

// Live processes that are blocked in a call of the buffer, for statistics. Each sorted list has a process id once, even
// if several threads of the process wait.
struct Waiters {
  std::vector<int> adding{};    // writers blocked by the rate limiter
  std::vector<int> sampling{};  // samplers waiting for rows
};

Waiters waiters_of(const Store& store);

}  // namespace shmtree::replay
