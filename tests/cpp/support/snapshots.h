// Selects one arena from an observer's snapshot.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "observe/observer.h"
#include "support/arenas.h"

namespace shmtree::test {

inline ObservedArena look_at(const unsigned char uuid[16], std::vector<ObservedArena> looked = observe()) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (int i = 0; i < 16; ++i) hex += {kDigits[uuid[i] / 16], kDigits[uuid[i] % 16]};
  for (ObservedArena& arena : looked) {
    if (arena.uuid == hex) return std::move(arena);
  }
  std::abort();
}
inline ObservedArena look_at(const Arena& arena) {
  return look_at(arena.uuid());
}
inline ObservedParticipant participant_of(const ObservedArena& arena, int pid) {
  for (const ObservedParticipant& one : arena.participants) {
    if (one.pid == pid) return one;
  }
  std::abort();
}
// Returns true if that process has the arena open. Concurrent observers, such as other tests, may have it open, too.
inline bool opens(const ObservedArena& arena, int pid) {
  return std::any_of(arena.openers.begin(), arena.openers.end(), [pid](const auto& one) { return one.pid == pid; });
}
// Returns every byte of the arena's file.
inline std::vector<std::byte> bytes_of(const Arena& arena) {
  std::vector<std::byte> bytes(file_size(arena.fd()).value());
  if (!read_at(arena.fd(), 0, bytes.data(), bytes.size())) std::abort();
  return bytes;
}

// A process that is attached to an arena until it is killed.
class Participant {
 public:
  explicit Participant(const std::shared_ptr<Arena>& arena)
      : child_([&] {
          arena->identity().value();
          attached_.open();
          pause();
          return true;
        }) {
    attached_.wait();
  }
  Child& process() noexcept { return child_; }
  int pid() const noexcept { return child_.pid(); }

 private:
  Gate attached_;  // made before the child
  Child child_;
};

// A stopped process that owns a lock of the arena.
class StoppedOwner {
 public:
  StoppedOwner(const std::shared_ptr<Arena>& arena, std::atomic<std::uint32_t>& lock)
      : child_([&] {
          arena->lock(lock, patience()).value();
          locked_.open();
          pause();
          return true;
        }) {
    locked_.wait();
    child_.signal(SIGSTOP);
    child_.wait_until_stopped();
  }
  int pid() const noexcept { return child_.pid(); }

 private:
  Gate locked_;  // made before the child
  Child child_;
};

}  // namespace shmtree::test
