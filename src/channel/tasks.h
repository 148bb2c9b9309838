// Features that only a queue has: task counts, shutdown, and the reservation of an end for one process.
//
// Nothing here needs repair: a shutdown is final, and the number of unfinished tasks is computed from primary state.
//
// Invariant: a message is a task from the store of `tail` until it is reported as done (`tasks_done`) or discarded, so
// that no process will receive it. An immediate shutdown discards
//   messages in the ring  the tickets from `discarded_from` on, all with the store of `shutdown`
//   returned messages     by their records, while those say returned or discarded. They are discarded by the same
//                         store, or by the store that returns the message later, by its taker or by a recovery. Such a
//                         record never becomes free
//   Unreturned messages   that a process could not build: they add to `tasks_done`
//
// A rejected message counts as done: by its record while it is rejected, and by `tasks_done` after its ack. If a
// process dies between the two stores of such an ack, the task is never done, like that of a process that dies between
// a get and its task_done(). A requeue makes the message unfinished again.
//
// Thread safety: any thread.
#pragma once

#include "channel/records.h"
#include "channel/watchers.h"

namespace shmtree::channel {

class Tasks {
 public:
  Tasks(const Control& control, const Records& records, Front& front, const Ends& ends, Watchers& watchers) noexcept
      : control_(control), records_(records), front_(front), ends_(ends), watchers_(watchers) {}

  // Reports one message as done. kInvalid if all messages are done or rejected.
  Status done();
  // Blocks until all tasks are done. kTimeout.
  Status join(const WaitContext& wait);
  std::uint64_t unfinished() const noexcept;
  // Shuts the queue down. Every later put fails with kShutDown. Gets succeed as long as messages are left; `discard`
  // discards them all.
  Status shut_down(bool discard, const WaitContext& wait);
  // Reserves the end for this process until release(), or until this process dies. Not recursive: a second call waits
  // like that of any other process. kTimeout.
  Status reserve(End end, const WaitContext& wait);
  // Ends the reservation of any process. False if there was none.
  bool release(End end) noexcept;

 private:
  std::uint64_t last() const noexcept;

  const Control control_;
  const Records& records_;
  Front& front_;
  const Ends& ends_;
  Watchers& watchers_;
};

}  // namespace shmtree::channel
