#include "memory/publishers.h"

#include <new>
#include <string>
#include <utility>

#include "platform/dcheck.h"
#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

std::uint64_t word_of(Identity identity, PublisherRole role = PublisherRole::kPublishes,
                      Failure failure = Failure::kNone) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(role)} << 62 | std::uint64_t{identity} << 32 |
         static_cast<std::uint32_t>(death_word(process_id(), failure));
}

}  // namespace

bool Publishers::may_publish(std::uint64_t word) const noexcept {
  return failure_of(death_of(word)) == Failure::kNone && participants_.is_alive(identity_of(word));
}

void Publishers::enter(Identity me) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  const std::uint64_t mine = word_of(me);
  std::atomic<std::uint64_t>& entry = words_.by_slot[slot_of(me)];
  if (load_relaxed(entry) == mine) return;
  store_seq_cst(entry, mine);
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0 || may_publish(word)) continue;
    compare_swap(words_.by_slot[slot], word, std::uint64_t{0});
  }
}

bool Publishers::attach(PublisherRole as) noexcept {
  SHMTREE_DCHECK(as != PublisherRole::kPublishes);
  const Identity me = participants_.current();
  if (me == kNoIdentity) return false;
  std::uint64_t before = 0;
  std::atomic<std::uint64_t>& entry = words_.by_slot[slot_of(me)];
  if (compare_swap(entry, before, word_of(me, as))) return true;
  const PublisherRole other = as == PublisherRole::kReads ? PublisherRole::kOpened : PublisherRole::kReads;
  return before == word_of(me, other) && compare_swap(entry, before, word_of(me, as));
}

bool Publishers::leave(Failure failure) noexcept {
  const Identity me = participants_.current();
  if (me == kNoIdentity) return false;
  std::atomic<std::uint64_t>& entry = words_.by_slot[slot_of(me)];
  std::uint64_t mine = load_acquire(entry);
  while (mine != 0 && identity_of(mine) == me && failure_of(death_of(mine)) == Failure::kNone) {
    const bool reports = failure != Failure::kNone && role_of(mine) != PublisherRole::kReads;
    if (compare_swap(entry, mine, reports ? word_of(me, role_of(mine), failure) : 0)) return true;
  }
  return false;
}

bool Publishers::has_word(std::uint32_t slot) const noexcept {
  const std::uint64_t word = load_acquire(words_.by_slot[slot]);
  return word != 0 && slot_of(identity_of(word)) == slot && participants_.is_alive(identity_of(word));
}

std::vector<int> Publishers::pids() const {
  std::vector<int> found;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0 || role_of(word) != PublisherRole::kPublishes || !may_publish(word)) continue;
    found.push_back(pid_of_death(death_of(word)));
  }
  return found;
}

Status Publishers::check(Stream stream, const char* did) const try {
  std::vector<DeathWord> killed;
  bool is_attached = false;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    const bool publishes = role_of(word) == PublisherRole::kPublishes;
    const bool counts = publishes || (stream == Stream::kNotBegun && role_of(word) != PublisherRole::kReads);
    if (word == 0 || !counts) continue;
    if (!may_publish(word)) {
      killed.push_back(death_of(word));
    } else if (publishes || identity_of(word) != participants_.current()) {
      return success();
    } else {
      is_attached = true;
    }
  }
  if (killed.empty()) {
    return stream != Stream::kEndless && !is_attached
               ? Status(Error{.code = Code::kClosed,
                              .message = "the stream has ended: every publisher has closed or exited"})
               : success();
  }
  std::string text("every process that ");
  text += did;
  text += " has died or closed; these";
  Error error{.code = Code::kPeerDied, .message = std::move(text)};
  describe_deaths(error, killed);
  return error;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::memory
