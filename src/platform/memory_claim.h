// Claims of memory: a process announces how much it is about to commit, before it checks how much is left. So processes
// that commit at the same time do not all take the same free memory.
//
// A claim is a range that the process locks, with fcntl(), in one file of the user. Its length is the claimed bytes:
//
//   offset in the file   [ control group : 22 bits | slot : 17 bits | units of 64 KiB : 24 bits ]
//                          0: the machine            one claim        locked from 0 on
//
// A claim has the same slot in the range of each limit: that of the machine, and those of the control groups from the
// process's own up to the root.
//
// Invariants:
//   - A process locks its claim first, then adds up the claims of others, then reads the memory left. It commits only
//     if all fit. So of two processes at least one counts the bytes of the other, as a claim or as memory in use.
//   - A claim is lowered only after its bytes were committed, when the kernel counts them as used.
//   - The kernel ends the locks of a killed process. The claim of a stopped process remains, and delays no other.
//   - The locks belong to the process, so a forked child has none, and its claims do not depend on its parent's.
//
// Without the file (no folder that the user may write, no free descriptor), claims are not announced, but memory is
// still checked. Other users, and containers with a /dev/shm of their own, have other files.
//
// Thread safety: any thread may make claims. A claim belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace shmtree::platform {

class MemoryClaim {
 public:
  enum class Answer {
    kFits,
    kContended,  // it would fit without the claims of others, which may be about to end
    kTooLittle,
  };
  // Credit is a claim that remains after the commit. Later small commits use it up before they make a new claim, since
  // reading the memory left takes longer than a small commit.
  enum class Credit { kNone, kShared };

  // Claims `bytes` beside a reserve for the programs.
  MemoryClaim(std::uint64_t bytes, Credit credit) noexcept;
  // Ends the claim.
  ~MemoryClaim();
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

  Answer answer() const noexcept { return answer_; }
  // Lowers the claim by memory that was committed.
  void committed(std::uint64_t bytes) noexcept;
  // Checks that what was not committed still fits: programs may have taken memory meanwhile.
  bool still_fits() const noexcept;

 private:
  int slot_ = -1;           // index of this process's claim; -1: not announced
  bool on_credit_ = false;  // covered by the claim that is the process's credit
  std::uint64_t bytes_, credit_ = 0;
  Answer answer_ = Answer::kFits;
};

// True if the limits leave `bytes` beside the reserve; claims do not count. May throw std::bad_alloc.
bool has_memory_for(std::uint64_t bytes);
// Returns the reason why there is too little memory for a claim of `bytes`; empty if there is enough. May throw
// std::bad_alloc.
std::string memory_shortage(std::uint64_t bytes);

}  // namespace shmtree::platform
