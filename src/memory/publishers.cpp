#include "memory/publishers.h"

#include <new>
#include <string>
#include <utility>

#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

std::uint64_t word_of(Identity identity, Failure failure = Failure::kNone) noexcept {
  return std::uint64_t{identity} << 32 | static_cast<std::uint32_t>(death_word(process_id(), failure));
}
constexpr Identity identity_of(std::uint64_t word) noexcept {
  return static_cast<Identity>(word >> 32);
}
constexpr DeathWord death_of(std::uint64_t word) noexcept {
  return static_cast<DeathWord>(static_cast<std::uint32_t>(word));
}

}  // namespace

bool Publishers::may_publish(std::uint64_t word) const noexcept {
  return failure_of(death_of(word)) == Failure::kNone && participants_.is_alive(identity_of(word));
}

bool Publishers::enter(Identity me) noexcept {
  const std::uint64_t mine = word_of(me);
  std::atomic<std::uint64_t>& entry = words_.by_slot[slot_of(me)];
  if (load_relaxed(entry) == mine) return false;
  store_seq_cst(entry, mine);
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0 || may_publish(word)) continue;
    compare_swap(words_.by_slot[slot], word, std::uint64_t{0});
  }
  return true;
}

bool Publishers::leave() noexcept {
  const Identity me = participants_.current();
  if (me == kNoIdentity) return false;
  std::uint64_t mine = word_of(me);
  const Failure failure = exit_failure();
  return compare_swap(words_.by_slot[slot_of(me)], mine, failure == Failure::kNone ? 0 : word_of(me, failure));
}

std::vector<int> Publishers::pids() const {
  std::vector<int> found;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word != 0 && may_publish(word)) found.push_back(pid_of_death(death_of(word)));
  }
  return found;
}

Status Publishers::check(bool begun, const char* did) const try {
  std::vector<DeathWord> killed;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0) continue;
    if (may_publish(word)) return success();
    killed.push_back(death_of(word));
  }
  if (killed.empty()) {
    return begun ? Status(Error{.code = Code::kClosed,
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
