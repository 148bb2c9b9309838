// Limits how far writers and samplers may get ahead of each other, as Reverb's SampleToInsertRatio does:
//
//   sampling begins after `min_size` rows were added
//   inserts x samples_per_insert - samples stays within samples_per_insert x min_size -+ error_buffer
//
// Works row by row: a call that samples many rows takes the credits that it can get, and waits for the others. A row
// counts as added when it is ready. A process takes credits before it adds or samples. It releases them if the
// operation fails; if the process dies, a waiting process releases them.
//
// Thread safety: any thread of any process.
#pragma once

#include <limits>

#include "memory/arena.h"
#include "memory/layout.h"
#include "platform/waiting.h"
#include "replay/rate_limiter/credits.h"
#include "replay/rows/members.h"

namespace shmtree::replay {

struct RateLimit {
  double samples_per_insert = 1;
  std::uint64_t min_size = 1;
  double error_buffer = std::numeric_limits<double>::quiet_NaN();  // NaN: chosen by checked()
};

struct RateLimiterWords {
  // Constant after creation.
  alignas(64) double samples_per_insert;
  double error_buffer;
  std::uint64_t min_size;
  std::uint64_t unused[5];

  memory::Event samples_taken;                                                 // writers wait for it
  memory::Event rows_added;                                                    // samplers wait for it
  CreditWords inserts, samples;                                                // credits of writers; of samplers
  alignas(64) std::atomic<memory::Identity> owners[memory::kMaxParticipants];  // owner of each slot's parts
};
static_assert(offsetof(RateLimiterWords, inserts) == 192 && offsetof(RateLimiterWords, samples) == 8448);
static_assert(offsetof(RateLimiterWords, owners) == 16704 && sizeof(RateLimiterWords) == 20800);

class RateLimiter {
 public:
  // Returns the limit with defaults filled in. Returns kInvalid, with the numbers, if it could block writers and
  // samplers at the same time, or forever.
  static Result<RateLimit> checked(const RateLimit& limit, std::uint64_t capacity);

  // `words` were initialised by make() and are untrusted. `members`, which may be null, detect the death of writers and
  // samplers. `block` is the buffer's packed block, by which waiters_of() finds waiting processes.
  RateLimiter(RateLimiterWords& words, std::shared_ptr<memory::Arena> arena,
              std::shared_ptr<BufferMembers> members = nullptr, std::uint64_t block = 0) noexcept;
  static void make(RateLimiterWords& words, const RateLimit& checked) noexcept;

  RateLimit limit() const noexcept;
  std::uint64_t inserts() const noexcept;  // rows added since the buffer was created or cleared
  std::uint64_t samples() const noexcept { return samples_.count(); }

  // Takes credits to add rows. Blocks until one row may be added, then takes as many credits as possible, up to `most`.
  // Takes at least `least`, since some rows become ready together. Returns the number of credits. Returns kFull at the
  // deadline, kInterrupted, or kPeerDied if all samplers were killed.
  Result<std::uint64_t> take_inserts(std::uint64_t least, std::uint64_t most, const platform::WaitContext& wait);
  // Counts rows that have become ready, also rows without a credit.
  void use_inserts(std::uint64_t rows) noexcept;
  void give_back_inserts(std::uint64_t credits) noexcept;

  // Takes credits to sample `rows` rows, and blocks until it has all of them. Returns kEmpty at the deadline,
  // kInterrupted, or kPeerDied if all writers were killed. After an error it has released all credits.
  Status take_samples(std::uint64_t rows, const platform::WaitContext& wait);
  // Counts rows that were sampled.
  void use_samples(std::uint64_t rows) noexcept;
  void give_back_samples(std::uint64_t credits) noexcept;

  // Wakes all waiting processes.
  void wake_all() noexcept;

  // Resets both counts, after the buffer was cleared.
  void reset() noexcept;
  // Sets the rows that count as added and as sampled. Requires a new buffer to which no other process is attached.
  void restore(std::uint64_t inserts, std::uint64_t samples) noexcept;

 private:
  std::uint64_t insertable(std::uint64_t inserts, std::uint64_t most) const noexcept;
  std::uint64_t sampleable(std::uint64_t samples, std::uint64_t most) const noexcept;
  struct Waiting {
    memory::Event& event;  // signalled when the counts change
    memory::WaitFor what;
    Members* others;  // processes that can change the counts; may be null
  };
  template <class Take>
  Result<std::uint64_t> wait_for(const Waiting& waiting, const platform::WaitContext& wait, Take take);
  Result<std::uint32_t> own_slot();
  void give_back_of_dead() noexcept;
  bool give_back_of(std::uint32_t slot) noexcept;

  RateLimiterWords& words_;
  const std::shared_ptr<memory::Arena> arena_;
  const std::shared_ptr<BufferMembers> members_;
  const std::uint64_t block_;
  Credits inserts_, samples_;
  const RateLimit limit_;
};

}  // namespace shmtree::replay
