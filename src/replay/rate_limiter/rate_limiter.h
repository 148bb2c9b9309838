// How far those who add rows and those who sample them may get from each other, as Reverb's SampleToInsertRatio:
//
//   nobody samples before there were `min_size` rows
//   inserts x samples_per_insert - samples stays within samples_per_insert x min_size -+ error_buffer
//
// Row by row: who wants to sample many has taken those that it may, and waits for the others. A row counts as added
// when it is ready; credits are taken before, and given back when nothing came of it, or who had them died.
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
  double error_buffer = std::numeric_limits<double>::quiet_NaN();  // no number: what suits the others
};

struct RateLimiterWords {
  // Written once.
  alignas(64) double samples_per_insert;
  double error_buffer;
  std::uint64_t min_size;
  std::uint64_t unused[5];

  memory::Event samples_taken;  // for who adds
  memory::Event rows_added;     // for who samples
  CreditWords inserts, samples;
  alignas(64) std::atomic<memory::Identity> owners[memory::kMaxParticipants];  // of the parts of both
};
static_assert(offsetof(RateLimiterWords, inserts) == 192 && offsetof(RateLimiterWords, samples) == 8448);
static_assert(offsetof(RateLimiterWords, owners) == 16704 && sizeof(RateLimiterWords) == 20800);

class RateLimiter {
 public:
  // What is left open filled in; kInvalid, with the numbers, for one that would block those who add and those who
  // sample at once, or for ever.
  static Result<RateLimit> checked(const RateLimit& limit, std::uint64_t capacity);

  // The words were made with make(), or anybody may have written them. `members`: of those who wait for each other,
  // or null. `about`: the buffer's block, packed, for who asks what a process waits for.
  RateLimiter(RateLimiterWords& words, std::shared_ptr<memory::Arena> arena,
              std::shared_ptr<BufferMembers> members = nullptr, std::uint64_t about = 0) noexcept;
  static void make(RateLimiterWords& words, const RateLimit& checked) noexcept;

  RateLimit limit() const noexcept;
  std::uint64_t inserts() const noexcept;  // rows that were added, since the buffer was made or cleared
  std::uint64_t samples() const noexcept { return samples_.count(); }

  // Credits to add rows: waits until one more may be added, then takes as many as may be, up to `most`, but `least` of
  // them in any case (rows that become ready together). How many they are; kFull at the deadline, kInterrupted,
  // kPeerDied when all who sampled were killed.
  Result<std::uint64_t> take_inserts(std::uint64_t least, std::uint64_t most, const platform::WaitContext& wait);
  // Rows are ready; those without a credit count as well.
  void use_inserts(std::uint64_t rows) noexcept;
  void give_back_inserts(std::uint64_t credits) noexcept;

  // Credits to sample so many rows, waited for one by one; kEmpty at the deadline, kInterrupted, kPeerDied when all who
  // added were killed: then it has none.
  Status take_samples(std::uint64_t rows, const platform::WaitContext& wait);
  // They were sampled.
  void use_samples(std::uint64_t rows) noexcept;
  void give_back_samples(std::uint64_t credits) noexcept;

  // All who wait look again.
  void wake_all() noexcept;

  // The buffer is empty again.
  void reset() noexcept;
  // Of a new buffer, that nobody has yet: rows that count as added, and as sampled.
  void restore(std::uint64_t inserts, std::uint64_t samples) noexcept;

 private:
  std::uint64_t insertable(std::uint64_t inserts, std::uint64_t most) const noexcept;
  std::uint64_t sampleable(std::uint64_t samples, std::uint64_t most) const noexcept;
  struct Waiting {
    memory::Event& event;  // others did something
    memory::WaitFor what;
    Members* others;  // or null
  };
  template <class Take>
  Result<std::uint64_t> wait_for(const Waiting& waiting, const platform::WaitContext& wait, Take take);
  Result<std::uint32_t> own_slot();
  void give_back_of_dead() noexcept;
  bool give_back_of(std::uint32_t slot) noexcept;

  RateLimiterWords& words_;
  const std::shared_ptr<memory::Arena> arena_;
  const std::shared_ptr<BufferMembers> members_;
  const std::uint64_t about_;
  Credits inserts_, samples_;
  const RateLimit limit_;
};

}  // namespace shmtree::replay
