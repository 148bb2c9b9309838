// What a queue has besides: tasks that are counted, shutting down, and an end that one process reserves for itself.
//
// Nothing here needs repair: the number of unfinished tasks is the difference of two words, and what was shut down
// stays so.
//
// Thread safety: any thread.
#pragma once

#include "channel/receiving.h"

namespace shmtree::channel {

class Tasks {
 public:
  Tasks(Parts& parts, Receiving& receiving) noexcept : parts_(parts), receiving_(receiving) {}

  // One more of the messages put was dealt with; kInvalid when all of them were.
  Status done();
  // Waits until all were. kTimeout.
  Status join(const WaitContext& wait);
  std::uint64_t unfinished() const noexcept;
  // From the return on no put succeeds: kShutDown. Gets do while there is something left; with `discard` nothing is.
  Status shut_down(bool discard, const WaitContext& wait);
  // Keeps everyone but this process from using that end until release(), or this process's death. Not recursive: a
  // second call waits like everybody's. kTimeout.
  Status reserve(End end, const WaitContext& wait);
  // Whether there was a reservation, whoever made it.
  bool release(End end) noexcept;

 private:
  std::uint64_t last() const noexcept;

  Parts& parts_;
  Receiving& receiving_;
};

}  // namespace shmtree::channel
