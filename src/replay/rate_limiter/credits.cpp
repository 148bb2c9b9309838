#include "replay/rate_limiter/credits.h"

#include <algorithm>

#include "platform/dcheck.h"

namespace shmtree::replay {

using namespace platform;

namespace {

struct Total {
  std::uint64_t count = 0;
  std::uint32_t slot = 0, operation = 0;  // the operation's lowest 12 bits
};
constexpr std::uint32_t kOperationInTotal = 0xfff;
constexpr std::uint64_t pack(const Total& total) noexcept {
  return total.count << 22 | std::uint64_t{total.slot} << 12 | (total.operation & kOperationInTotal);
}
constexpr Total unpack_total(std::uint64_t word) noexcept {
  return {.count = word >> 22,
          .slot = static_cast<std::uint32_t>(word >> 12 & 0x3ff),
          .operation = static_cast<std::uint32_t>(word & kOperationInTotal)};
}

struct Part {
  std::uint32_t operation = 0;  // number of the last operation
  std::int32_t change = 0;      // its announced change; 0: completed
  std::int32_t credits = 0;
};
constexpr std::uint64_t pack(const Part& part) noexcept {
  return std::uint64_t{part.operation & 0xffffffu} << 40 |
         std::uint64_t{static_cast<std::uint32_t>(part.change) & 0xfffffu} << 20 |
         (static_cast<std::uint32_t>(part.credits) & 0xfffffu);
}
constexpr std::int32_t signed_20(std::uint64_t bits) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits) << 12) >> 12;
}
// Accepts any word: negative credits become 0.
constexpr Part unpack_part(std::uint64_t word) noexcept {
  return {.operation = static_cast<std::uint32_t>(word >> 40),
          .change = signed_20(word >> 20),
          .credits = std::max(signed_20(word), 0)};
}
static_assert(unpack_part(pack(Part{.operation = 9, .change = -7, .credits = 8})).change == -7);

}  // namespace

// Completes the last change of the total, in the part of any process, and returns the total.
std::uint64_t Credits::settled() noexcept {
  for (;;) {
    const std::uint64_t word = load_acquire(words_.total);
    const Total total = unpack_total(word);
    std::uint64_t at = load_acquire(words_.parts[total.slot]);
    const Part part = unpack_part(at);
    if (part.change == 0 || (part.operation & kOperationInTotal) != total.operation) return word;
    if (load_acquire(words_.total) != word) continue;  // the part may belong to a later operation
    const Part done{.operation = part.operation, .credits = std::max(part.credits + part.change, 0)};
    if (compare_swap(words_.parts[total.slot], at, pack(done))) return word;
  }
}

bool Credits::has_space(std::uint32_t slot, std::uint64_t credits) const noexcept {
  return credits_of(slot) + credits <= kMaxCredits;
}

std::uint64_t Credits::credits_of(std::uint32_t slot) const noexcept {
  return static_cast<std::uint64_t>(unpack_part(load_acquire(words_.parts[slot])).credits);
}

// Changes the count and the slot's credits by `by`. Returns false, and changes nothing, if the total is not `before`
// any more.
bool Credits::change(std::uint32_t slot, std::uint64_t before, std::int64_t by) noexcept {
  SHMTREE_DCHECK(slot < memory::kMaxParticipants && by != 0 && by <= static_cast<std::int64_t>(kMaxCredits));
  std::uint64_t at = load_acquire(words_.parts[slot]);
  Part part = unpack_part(at);
  if (part.change != 0) part.change = 0;  // damaged: the owner has no other operation in progress
  const Part announced{
      .operation = part.operation + 1, .change = static_cast<std::int32_t>(by), .credits = part.credits};
  if (!compare_swap(words_.parts[slot], at, pack(announced))) return false;
  const Total total = unpack_total(before);
  const std::uint64_t count = by < 0 ? total.count - std::min(total.count, static_cast<std::uint64_t>(-by))
                                     : total.count + static_cast<std::uint64_t>(by);
  std::uint64_t expected = before;
  const Total next{.count = count, .slot = slot, .operation = announced.operation};
  if (compare_swap(words_.total, expected, pack(next))) {
    settled();
    return true;
  }
  std::uint64_t withdrawn = pack(announced);
  compare_swap(words_.parts[slot], withdrawn, pack(Part{.operation = announced.operation, .credits = part.credits}));
  return false;
}

std::uint64_t Credits::use(std::uint32_t slot, std::uint64_t credits) noexcept {
  std::uint64_t at = load_acquire(words_.parts[slot]);
  for (;;) {
    Part part = unpack_part(at);
    const std::uint64_t used = std::min(credits, static_cast<std::uint64_t>(part.credits));
    part.credits -= static_cast<std::int32_t>(used);
    if (used == 0 || compare_swap(words_.parts[slot], at, pack(part))) return used;
  }
}

void Credits::give_back(std::uint32_t slot, std::uint64_t credits) noexcept {
  for (;;) {
    const std::uint64_t before = settled();
    const std::uint64_t back = std::min(credits, credits_of(slot));
    if (back == 0 || change(slot, before, -static_cast<std::int64_t>(back))) return;
  }
}

bool Credits::is_clean(std::uint64_t part) noexcept {
  return unpack_part(part).change == 0 && unpack_part(part).credits == 0;
}

// Does one store of the release of a dead owner's credits. The caller loaded the settled total `before`, then `word`.
void Credits::give_back_step(std::uint32_t slot, std::uint64_t before, std::uint64_t word) noexcept {
  const Part part = unpack_part(word);
  if (part.change > 0) {  // the total does not name it, so it was not done
    compare_swap(words_.parts[slot], word, pack(Part{.operation = part.operation, .credits = part.credits}));
  } else if (part.change < 0) {
    const Total total = unpack_total(before);
    const std::uint64_t back = std::min(total.count, static_cast<std::uint64_t>(-part.change));
    std::uint64_t expected = before;
    compare_swap(words_.total, expected, pack(Total{total.count - back, slot, part.operation}));
  } else {
    const Part announced{.operation = part.operation + 1, .change = -part.credits, .credits = part.credits};
    compare_swap(words_.parts[slot], word, pack(announced));
  }
}

std::uint64_t Credits::used(std::uint32_t slots) const noexcept {
  const std::uint64_t before = count();
  std::uint64_t open = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const Part part = unpack_part(load_acquire(words_.parts[slot]));
    open += static_cast<std::uint64_t>(part.credits + std::max(part.change, 0));
  }
  const std::uint64_t most = std::min(before, count());  // other processes may have released credits meanwhile
  return most - std::min(most, open);
}

void Credits::restore(std::uint64_t count) noexcept {
  store_release(words_.total, pack(Total{.count = std::min(count, kMaxCount)}));
}

void Credits::reset(std::uint32_t slots) noexcept {
  for (;;) {
    std::uint64_t before = settled();
    Total total = unpack_total(before);
    total.count = 0;
    for (std::uint32_t slot = 0; slot < slots; ++slot) total.count += credits_of(slot);
    if (compare_swap(words_.total, before, pack(total))) return;
  }
}

}  // namespace shmtree::replay
