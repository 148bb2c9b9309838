// Who takes part in an end, and when a stream has ended.
//
// A process takes part from the moment it has the end (created, inherited and not passive, or in transit to it) until
// it leaves, exits, dies, or uses the other end without ever having used this one. (Of a pipe, whoever made it takes
// part in both ends as long as it has them.) An end that nobody takes part in any more, though somebody did, is over:
// for receivers that is the end of the stream. So is the shutdown of a queue. Either way they are told once nothing is
// left for them: nothing queued, and nothing that another process has taken and may give back. What a process has taken
// itself it does not wait for, in any of its threads.
//
// In a queue, a process has both ends, and may use either at any time. So a process counts at an end until it leaves
// that end, whatever it uses. A process that has left one end itself, and no other, is told when no process has that
// end.
//
// All of this is in shared memory; what this process has of an end is membership.h's.
//
// Thread safety: any thread, without locks.
#pragma once

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "channel/records.h"

namespace shmtree::channel {

// Notes that one who took part in that end was killed: those at the other one are told when nobody is left.
void add_killed(KilledList& killed, std::int32_t pid) noexcept;

class Ends {
 public:
  Ends(const Control& control, const Records& records) noexcept : control_(control), records_(records) {}

  bool has_member(End end, Identity who) const noexcept { return state(end).members.contains(memory::slot_of(who)); }
  bool anyone_has(End end) const noexcept;
  // True if a process takes part in the end, or it is in transit, at some instant of the call.
  bool anyone_at(End end) const noexcept;
  bool anyone_at_either() const noexcept { return anyone_at(End::kSending) || anyone_at(End::kReceiving); }
  // True if a pickled end was not loaded yet. A queue is in transit with both ends.
  bool is_in_transit(End end) const noexcept {
    return has_transfer(end) || (control_.is_queue() && has_transfer(other(end)));
  }
  // What those have done who take part in that end.
  struct Uses {
    bool anyone = false;     // takes part in it
    bool used = false;       // one of them has used it
    bool given = false;      // one of them was given it to use
    bool forgotten = false;  // one of them created or inherited it, and has not used it (a pipe's maker is exempt)
  };
  Uses uses(End end) const noexcept;
  // Whether it may have been forgotten by those who have it: none of them has used it, or was given it to use.
  bool is_forgotten(End end) const noexcept;
  // Calls visit(slot) for each who keeps it open, or may do so by using it, until that returns false; whether it never
  // did.
  template <class Visit>
  bool all_who_may_use(End end, Visit visit) const {
    for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
      for (std::uint64_t bits = keeping_open(end, i) | platform::load_seq_cst(state(end).passive.words[i]); bits != 0;
           bits &= bits - 1) {
        if (!visit(i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)))) return false;
      }
    }
    return true;
  }
  // The processes that take part in it and have not used it. May throw std::bad_alloc.
  std::vector<int> unused_pids(End end) const;
  memory::InTransit in_transit(End end) const noexcept {
    return control_.arena.transfers().in_transit(memory::pack(control_.block), transferred(end));
  }
  // The processes of whose death the other end would be told at once: the only one that takes part, or each of them
  // where each is told. May throw std::bad_alloc.
  std::vector<int> pids_told_of(End end) const;
  // How many processes have it, and how many of those take part in it.
  std::uint64_t member_count(End end) const noexcept;
  std::uint64_t counting(End end) const noexcept;
  // True if this end can reach its end of stream for a process that is still attached to it. False for queues.
  bool can_end(End end) const noexcept {
    return !control_.is_queue() && !(end == End::kSending && control_.keeps_open());
  }
  // Whether nobody takes part in it any more: no message is sent, or none received.
  bool is_left(End end) const noexcept;
  // Whether those at the other end, or `told` of them, are to be told so.
  bool is_over(End end) const noexcept { return is_over(end, control_.arena.current_identity()); }
  bool is_over(End end, Identity told) const noexcept;
  // Of one that took part by way of this process, and has no place in the arena.
  void note_killed(End end, int pid) noexcept { add_killed(state(end).killed, pid); }
  bool anyone_killed(End end) const noexcept;
  // Whether somebody of that end was killed whom the others are to be told of though the stream goes on.
  bool has_deaths_to_tell(End end) const noexcept { return control_.ending() == Ending::kEach && anyone_killed(end); }
  // kClosed, kPeerDied: what those at the other end are to be told now.
  Status check_attended(End end) const { return is_over(end) ? Status(end_error(end)) : report_deaths(end); }
  // Returns kPeerDied with the deaths that Ending::kEach reports while the stream goes on. Succeeds if there are none,
  // or if another thread has just reported them; the caller then checks its condition again.
  Status report_deaths(End end) const;
  // For a call that may find no reason to wait, and so to look: kPeerDied with those.
  Status check_deaths(End end) const { return control_.ending() == Ending::kEach ? look_for_deaths(end) : success(); }
  // Returns what the other end is told of an end that is over: that the queue was shut down; that peers were killed
  // (kPeerDied), to the thread that takes the list of deaths; otherwise kClosed.
  Error end_error(End end) const;
  // Takes the list of killed peers, and returns kPeerDied with their pids. Nothing if the list is empty, also because
  // another thread has just taken it.
  std::optional<Error> take_deaths(End end) const;
  // For who attaches a sender only now: the stream has ended in the meantime.
  Error left_before_use() const;
  // Checks a transfer before the receiving process joins: kClosed if it comes too late, so that the stream is over;
  // kInvalid if it is of the other end.
  Status check_transfer(std::uint64_t number, End end, int giver_pid) const;

 private:
  std::uint64_t taking_part(End end, std::uint32_t word) const noexcept;
  std::uint64_t maker_in(std::uint32_t word) const noexcept;
  std::uint64_t keeping_open(End end, std::uint32_t word) const noexcept;
  template <class Bits>
  std::vector<int> pids_of(const Bits& bits_of) const;
  Status look_for_deaths(End end) const;
  bool has_transfer(End end) const noexcept {
    return control_.arena.transfers().is_in_transit(memory::pack(control_.block), transferred(end));
  }
  EndState& state(End end) const noexcept { return control_.shared.ends[end]; }

  const Control control_;
  const Records& records_;
};

}  // namespace shmtree::channel
