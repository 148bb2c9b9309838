#include "memory/publishers.h"

#include <new>
#include <string>
#include <utility>

#include "platform/errors.h"
#include "platform/machine.h"

namespace shmtree::memory {

using namespace platform;

namespace {

std::uint64_t word_of(Identity identity) noexcept {
  return std::uint64_t{identity} << 32 | static_cast<std::uint32_t>(process_id());
}
constexpr Identity identity_of(std::uint64_t word) noexcept {
  return static_cast<Identity>(word >> 32);
}
constexpr int pid_of(std::uint64_t word) noexcept {
  return static_cast<int>(static_cast<std::uint32_t>(word));
}

}  // namespace

bool Publishers::enter(Identity me) noexcept {
  const std::uint64_t mine = word_of(me);
  std::atomic<std::uint64_t>& entry = words_.by_slot[slot_of(me)];
  if (load_relaxed(entry) == mine) return false;
  store_seq_cst(entry, mine);
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0 || participants_.is_alive(identity_of(word))) continue;
    compare_swap(words_.by_slot[slot], word, std::uint64_t{0});
  }
  return true;
}

bool Publishers::leave() noexcept {
  const Identity me = participants_.current();
  if (me == kNoIdentity) return false;
  std::uint64_t mine = word_of(me);
  return compare_swap(words_.by_slot[slot_of(me)], mine, std::uint64_t{0});
}

std::vector<int> Publishers::pids() const {
  std::vector<int> found;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word != 0 && participants_.is_alive(identity_of(word))) found.push_back(pid_of(word));
  }
  return found;
}

Status Publishers::check(bool begun, const char* did) const try {
  std::vector<int> killed;
  const std::uint32_t slots = participants_.used_slots();
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t word = load_acquire(words_.by_slot[slot]);
    if (word == 0) continue;
    if (participants_.is_alive(identity_of(word))) return success();
    killed.push_back(pid_of(word));
  }
  if (killed.empty()) {
    return begun ? Status(Error{.code = Code::kClosed,
                                .message = "the stream has ended: every publisher has closed or exited"})
                 : success();
  }
  std::string text("every process that ");
  text += did;
  text += " has died or closed; died without closing:";
  Error error{.code = Code::kPeerDied, .message = std::move(text)};
  for (const int pid : killed) append_killed(error, pid);
  return error;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::memory
