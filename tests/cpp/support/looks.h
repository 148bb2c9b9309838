// What an observer sees of one arena, among all that are there.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "observe/observer.h"
#include "support/arenas.h"

namespace shmtree::test {

using observe::ArenaInfo;
using observe::ChannelInfo;
using observe::ParticipantInfo;

inline ArenaInfo look_at(const unsigned char uuid[16]) {
  for (ArenaInfo& info : observe::look_at_all()) {
    if (std::memcmp(info.uuid, uuid, sizeof info.uuid) == 0) return std::move(info);
  }
  std::abort();
}
inline ArenaInfo look_at(const Arena& arena) {
  return look_at(arena.uuid());
}
inline ParticipantInfo participant_of(const ArenaInfo& arena, int pid) {
  for (const ParticipantInfo& one : arena.participants) {
    if (one.pid == pid) return one;
  }
  std::abort();
}
inline std::vector<int> pids_of(const ArenaInfo& arena, const std::vector<observe::Slot>& slots) {
  std::vector<int> pids;
  for (const ParticipantInfo& one : arena.participants) {
    if (std::find(slots.begin(), slots.end(), one.slot) != slots.end()) pids.push_back(one.pid);
  }
  return pids;
}

// Every byte of the arena's file.
inline std::vector<std::byte> bytes_of(const Arena& arena) {
  std::vector<std::byte> bytes(file_size(arena.fd()).value());
  if (!read_at(arena.fd(), 0, bytes.data(), bytes.size())) std::abort();
  return bytes;
}

// A process that has a lock of the arena's, and is stopped.
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
