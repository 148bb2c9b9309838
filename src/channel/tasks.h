// What a queue has besides: tasks that are counted, shutting down, and an end that one process reserves for itself.
//
// Nothing here needs repair: what was shut down stays so, and the tasks that are unfinished are counted by what is true
// anyway.
//
// Invariant: a message is a task from the store of `tail` on until it is reported as done (`tasks_done`), or discarded:
// nobody will be given it any more. After an immediate shutdown are discarded
//   those of the ring   the tickets from `discarded_from` on, all with the store of `shutdown`
//   returned ones       by their records, as long as those say returned or discarded: with that same store, or with the
//                       one that gives the message back, by its taker or by a recovery. Such a record is never free
//   those in no record  that a process could make nothing of: they add to `tasks_done`
// A rejected message counts as done: by its record while it is rejected, and by `tasks_done` from its ack on. A process
// that is killed between the two stores of such an ack leaves a task that is never done, as one that is killed between
// a get and its task_done(). A requeue makes the message unfinished again.
//
// Thread safety: any thread.
#pragma once

#include "channel/receiving.h"

namespace shmtree::channel {

class Tasks {
 public:
  Tasks(Parts& parts, Receiving& receiving) noexcept : parts_(parts), receiving_(receiving) {}

  // Reports one message as done. kInvalid if all messages are done or rejected.
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
