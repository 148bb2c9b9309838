// The processes that add rows to a replay buffer (its writers) and those that sample them (its samplers): a call that
// waits for one kind fails when all of that kind were killed. docs/replay-layout.md has the words and the order of
// stores.
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

struct BufferMemberWords {
  memory::PublisherWords writers, samplers;
};
static_assert(sizeof(BufferMemberWords) == 16384 && offsetof(BufferMemberWords, samplers) == 8192);

// The writers of a buffer, or its samplers: of this process, as objects; of all others, by their words.
class Members {
 public:
  // `did`: what they did, for messages.
  Members(memory::Arena& arena, memory::PublisherWords& words, const char* did) noexcept
      : arena_(arena), words_(arena.participants(), words), did_(did) {}
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

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

// An object's membership. Without members it does nothing.
class Membership {
 public:
  explicit Membership(Members* members) noexcept : members_(members) {}
  ~Membership() { end(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Before each thing that it does; the first one, in each process, is what counts. Errors as of Arena::identity().
  Status begin() { return members_ == nullptr ? success() : begin_as_member(); }
  // After the last. It may begin again.
  void end() noexcept;

 private:
  Status begin_as_member();

  Members* const members_;
  std::atomic<memory::Identity> as_{memory::kNobody};
};

class BufferMembers {
 public:
  // This process's own of that buffer, of which all its objects are counted together. `words` are the buffer's.
  static std::shared_ptr<BufferMembers> of(std::shared_ptr<Store> store, BufferMemberWords& words);
  ~BufferMembers();
  // This process is about to end in order: whatever its threads still do, it neither adds nor samples any more.
  static void leave_all() noexcept;

  Members& writers() noexcept { return writers_; }
  Members& samplers() noexcept { return samplers_; }

 private:
  BufferMembers(std::shared_ptr<Store> store, BufferMemberWords& words) noexcept;

  const std::shared_ptr<Store> store_;  // which has the words
  Members writers_, samplers_;
};

// The processes that wait in a call of the buffer at present, for statistics.
// Process ids in order, each once however many of its threads wait; none of the dead.
struct Waiters {
  std::vector<int> adding{};    // for others to sample, as the rate limit wants
  std::vector<int> sampling{};  // for others to add
};

Waiters waiters_of(const Store& store);

}  // namespace shmtree::replay
