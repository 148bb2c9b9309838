#include "replay/rate_limiter/rate_limiter.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "memory/event.h"
#include "platform/dcheck.h"
#include "platform/fork.h"
#include "platform/never_destroyed.h"

namespace shmtree::replay {

using namespace platform;
using memory::Identity;

namespace {

// Allows one operation in progress per process and limit. All limits share the mutex, since operations are short.
struct Operations {
  ForkSafeMutex mutex;
};
ForkSafeMutex& operations() noexcept {
  return never_destroyed<Operations>().mutex;
}

std::string as_text(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// Rounds down to an integer of at most `most`. Negative numbers and NaN give 0.
std::uint64_t whole(double number, std::uint64_t most) noexcept {
  number += 1e-6;  // so that 0.1 * 30 gives 3
  if (!(number >= 1)) return 0;
  return number >= static_cast<double>(most) ? most : static_cast<std::uint64_t>(number);
}

}  // namespace

Result<RateLimit> RateLimiter::checked(const RateLimit& limit, std::uint64_t capacity) {
  const auto invalid = [](std::string message) { return Error{.code = Code::kInvalid, .message = std::move(message)}; };
  const double ratio = limit.samples_per_insert;
  if (!(ratio > 0) || std::isinf(ratio)) {
    return invalid("samples_per_insert is " + as_text(ratio) + "; it must be a finite number above 0");
  }
  if (limit.min_size < 1 || limit.min_size > capacity) {
    return invalid("min_size is " + std::to_string(limit.min_size) + "; it must be from 1 to the capacity, " +
                   std::to_string(capacity) + " rows");
  }
  RateLimit full = limit;
  const double least = std::max(1.0, ratio);
  if (std::isnan(limit.error_buffer)) {
    full.error_buffer = std::max(2 * least, 0.1 * ratio * static_cast<double>(limit.min_size));
  }
  if (full.error_buffer < least) {
    return invalid("error_buffer is " + as_text(full.error_buffer) + "; it must be at least " + as_text(least) +
                   ", the larger of 1 and samples_per_insert: with less, writers and samplers could block each other");
  }
  return full;
}

void RateLimiter::make(RateLimiterWords& words, const RateLimit& checked) noexcept {
  SHMTREE_DCHECK(checked.error_buffer >= 1 && checked.min_size >= 1);
  words.samples_per_insert = checked.samples_per_insert;
  words.error_buffer = checked.error_buffer;
  words.min_size = checked.min_size;
}

RateLimiter::RateLimiter(RateLimiterWords& words, std::shared_ptr<memory::Arena> arena,
                         std::shared_ptr<BufferMembers> members, std::uint64_t block) noexcept
    : words_(words),
      arena_(std::move(arena)),
      members_(std::move(members)),
      block_(block),
      inserts_(words.inserts),
      samples_(words.samples),
      limit_{.samples_per_insert = load_once(words.samples_per_insert),
             .min_size = load_once(words.min_size),
             .error_buffer = load_once(words.error_buffer)} {}

RateLimit RateLimiter::limit() const noexcept {
  return limit_;
}

std::uint64_t RateLimiter::inserts() const noexcept {
  return inserts_.used(arena_->participants().used_slots());
}

// Returns how many more rows may be added, up to `most`, if `inserts` rows are added or have credits.
std::uint64_t RateLimiter::insertable(std::uint64_t inserts, std::uint64_t most) const noexcept {
  SHMTREE_DCHECK(most <= kMaxCredits / 2);
  const double offset = limit_.samples_per_insert * static_cast<double>(limit_.min_size);
  const double available = offset + limit_.error_buffer + static_cast<double>(samples_.count());
  const std::uint64_t free = limit_.min_size - std::min(limit_.min_size, inserts);
  return std::min(most,
                  std::max(free, whole(available / limit_.samples_per_insert - static_cast<double>(inserts), most)));
}

std::uint64_t RateLimiter::sampleable(std::uint64_t samples, std::uint64_t most) const noexcept {
  const std::uint64_t rows = inserts();
  if (rows < limit_.min_size) return 0;
  const double offset = limit_.samples_per_insert * static_cast<double>(limit_.min_size);
  const double given = static_cast<double>(rows) * limit_.samples_per_insert - offset + limit_.error_buffer;
  return whole(given - static_cast<double>(samples), most);
}

// --- Credits of this process, and of dead ones

// Returns the slot of this process. On first use, releases the credits of the slot's previous owner.
Result<std::uint32_t> RateLimiter::own_slot() {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  const std::uint32_t slot = memory::slot_of(*me);
  if (load_acquire(words_.owners[slot]) == *me) [[likely]]
    return slot;
  const std::lock_guard guard(operations());
  while (load_acquire(words_.owners[slot]) != *me) {
    if (give_back_of(slot)) store_release(words_.owners[slot], *me);
  }
  return slot;
}

// Releases the credits of the slot's dead owner. Returns false if the slot has another owner by now.
bool RateLimiter::give_back_of(std::uint32_t slot) noexcept {
  const Identity owner = load_acquire(words_.owners[slot]);
  const auto is_still = [&] { return load_acquire(words_.owners[slot]) == owner; };
  return inserts_.give_back_all(slot, is_still) && samples_.give_back_all(slot, is_still);
}

void RateLimiter::give_back_of_dead() noexcept {
  memory::Participants& participants = arena_->participants();
  for (std::uint32_t slot = 0; slot < participants.used_slots(); ++slot) {
    const Identity owner = load_acquire(words_.owners[slot]);
    const bool has_any = owner != memory::kNoIdentity && (inserts_.has_any(slot) || samples_.has_any(slot));
    if (!has_any || memory::slot_of(owner) != slot || participants.is_alive(owner)) continue;
    give_back_of(slot);
    wake_all();
  }
}

// --- Waiting

// Calls take() until it returns credits, each time that the counts change. While it waits, it releases the credits
// of dead processes.
template <class Take>
Result<std::uint64_t> RateLimiter::wait_for(const Waiting& by, const WaitContext& wait, Take take) {
  Result<std::uint64_t> taken = std::uint64_t{0};
  const memory::TakingCondition ready([&] {
    auto slot = own_slot();
    taken = slot ? Result<std::uint64_t>(take(*slot)) : std::move(slot).error();
    return !taken || *taken != 0;
  });
  const auto check_members = [&](bool) -> Result<bool> {
    give_back_of_dead();
    Status alive = by.others == nullptr ? success() : by.others->check();
    if (alive) return false;
    if (ready()) return true;  // all that they did happened before they died
    return std::move(alive).error();
  };
  memory::EventWait waiting(by.event, {arena_->participants(), by.what, block_}, wait);
  auto came = memory::wait_until(waiting, wait, "the rate limit", ready, check_members);
  return came ? std::move(taken) : std::move(came).error();
}

Result<std::uint64_t> RateLimiter::take_inserts(std::uint64_t least, std::uint64_t most, const WaitContext& wait) {
  most = std::min(most, kMaxCredits / 2);
  const auto take = [&](std::uint32_t slot) {
    const std::lock_guard guard(operations());
    return inserts_.take(slot, [&](std::uint64_t inserts) -> std::uint64_t {
      const std::uint64_t free = insertable(inserts, most);
      return free == 0 ? 0 : std::max(free, least);
    });
  };
  Members* const samplers = members_ ? &members_->samplers() : nullptr;
  auto taken = wait_for({words_.samples_taken, memory::WaitFor::kRateLimit, samplers}, wait, take);
  if (!taken || *taken != 0) return taken;
  return Error{
      .code = Code::kFull,
      .message = "the rate limit allows no more rows until more are sampled: " + std::to_string(inserts_.count()) +
                 " were added and " + std::to_string(samples_.count()) + " sampled"};
}

void RateLimiter::use_inserts(std::uint64_t rows) noexcept {
  if (auto slot = or_out_of_memory([&] { return own_slot(); })) {
    const std::lock_guard guard(operations());
    std::uint64_t more = rows - inserts_.use(*slot, rows);
    while (more != 0) {
      const std::uint64_t taken = inserts_.take(*slot, [&](std::uint64_t) { return std::min(more, kMaxCredits / 2); });
      if (taken == 0) break;
      inserts_.use(*slot, taken);
      more -= taken;
    }
  }
  memory::notify_all(words_.rows_added);
}

void RateLimiter::give_back_inserts(std::uint64_t credits) noexcept {
  if (auto slot = or_out_of_memory([&] { return own_slot(); })) {
    const std::lock_guard guard(operations());
    inserts_.give_back(*slot, credits);
  }
  memory::notify_all(words_.samples_taken);
}

Status RateLimiter::take_samples(std::uint64_t rows, const WaitContext& wait) {
  if (rows > kMaxCredits / 2) {
    return Error{.code = Code::kInvalid,
                 .message = "cannot sample " + std::to_string(rows) + " rows at once: with a rate limit the limit is " +
                            std::to_string(kMaxCredits / 2)};
  }
  for (std::uint64_t have = 0; have < rows;) {
    const auto take = [&](std::uint32_t slot) {
      const std::lock_guard guard(operations());
      return samples_.take(slot, [&](std::uint64_t samples) { return sampleable(samples, rows - have); });
    };
    Members* const writers = members_ ? &members_->writers() : nullptr;
    auto taken = wait_for({words_.rows_added, memory::WaitFor::kRows, writers}, wait, take);
    if (taken && *taken != 0) {
      have += *taken;
      memory::notify_all(words_.samples_taken);
      continue;
    }
    give_back_samples(have);
    if (!taken) return std::move(taken).error();
    return Error{.code = Code::kEmpty,
                 .message = "the rate limit allows " + std::to_string(have) + " of " + std::to_string(rows) +
                            " samples until more rows are added: " + std::to_string(inserts()) + " were added and " +
                            std::to_string(samples_.count()) + " sampled"};
  }
  return success();
}

void RateLimiter::use_samples(std::uint64_t rows) noexcept {
  if (auto slot = or_out_of_memory([&] { return own_slot(); })) {
    const std::lock_guard guard(operations());
    samples_.use(*slot, rows);
  }
}

void RateLimiter::give_back_samples(std::uint64_t credits) noexcept {
  if (credits == 0) return;
  if (auto slot = or_out_of_memory([&] { return own_slot(); })) {
    const std::lock_guard guard(operations());
    samples_.give_back(*slot, credits);
  }
  memory::notify_all(words_.rows_added);
}

void RateLimiter::restore(std::uint64_t inserts, std::uint64_t samples) noexcept {
  inserts_.restore(inserts);
  samples_.restore(samples);
}

void RateLimiter::reset() noexcept {
  const std::uint32_t slots = arena_->participants().used_slots();
  inserts_.reset(slots);
  samples_.reset(slots);
  wake_all();
}

void RateLimiter::wake_all() noexcept {
  memory::notify_all(words_.samples_taken);
  memory::notify_all(words_.rows_added);
}

}  // namespace shmtree::replay
