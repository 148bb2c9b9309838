// Tracks the processes that are attached to an end, and decides when a stream has ended.
//
// A process is attached to an end from the moment it owns the end (created it, inherited it and not passive, or it is
// in transit to the process). It stays attached until it leaves, exits, dies, or uses the other end without ever having
// used this one. The creator of a pipe is attached to both ends as long as it owns them. An end is over if processes
// were attached to it and none is left; for receivers that is the end of the stream. The shutdown of a queue has the
// same effect. A receiver sees it once no message is left for it: none queued, and none that another process has taken
// and may return. It does not wait for messages that its own process has taken, in any thread.
//
// In a queue, a process owns both ends, and may use either at any time. So it counts as attached to an end until it
// leaves that end, even if it uses only the other one. Only a process that has left one end itself, and not the other,
// sees that no process has that end. With Ending::kQueueRaise, a process also sees that no other one can use an end any
// more and that one was killed. For that, processes that have used only the other end do not count.
//
// All of this is in shared memory. Membership keeps the state of this process.
//
// Thread safety: any thread, without locks.
#pragma once

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "channel/control.h"

namespace shmtree::channel {

// Records the death, or the failure, of a process that was attached to an end. Peers see it once no process is left.
void add_killed(KilledList& killed, std::int32_t pid, memory::Failure failure = memory::Failure::kNone) noexcept;

class Ends {
 public:
  explicit Ends(const Control& control) noexcept : control_(control) {}

  bool has_member(End end, Identity member) const noexcept {
    return state(end).members.contains(memory::slot_of(member));
  }
  bool has_attached_member(End end) const noexcept;
  // True if the member is attached, as in a pair: a process that uses only the other end is not.
  bool is_attached(End end, Identity member) const noexcept {
    const std::uint32_t slot = memory::slot_of(member);
    return member != memory::kNoIdentity && (taking_part(end, slot / 64) & ParticipantSet::bit_of(slot)) != 0;
  }
  // True if, at some instant of the call, a process is attached to the end or the end is in transit.
  bool has_users(End end) const noexcept;
  bool has_users_at_either() const noexcept { return has_users(End::kSending) || has_users(End::kReceiving); }
  // True if a pickled end was not loaded yet. A queue is in transit with both ends.
  bool is_in_transit(End end) const noexcept {
    return has_transfer(end) || (control_.is_queue() && has_transfer(other(end)));
  }
  // Summary of what the attached processes of an end have done.
  struct Uses {
    bool is_attached = false;  // A process is attached.
    bool used = false;         // One has used the end.
    bool given = false;        // One received it as an argument or in a message.
    bool forgotten = false;    // One created or inherited it and has not used it; the creator of a pipe does not count.
  };
  Uses uses(End end) const noexcept;
  // True if the end may have been forgotten: no attached process has used it or was given it, and one created or
  // inherited it, or it is in transit.
  bool is_forgotten(End end) const noexcept;
  // True if each process that has the end has not used it and waits at the other end instead. None of them is attached
  // then, but the stream goes on: each may still use the end.
  bool is_only_with_peers(End end) const noexcept;
  // Calls visit(slot) for each process that keeps the end open, or would keep it open if it used the end. Stops when
  // visit returns false, and then returns false.
  template <class Visit>
  bool all_possible_users(End end, Visit visit) const {
    for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
      for (std::uint64_t bits = keeping_open(end, i) | platform::load_seq_cst(state(end).passive.words[i]); bits != 0;
           bits &= bits - 1) {
        if (!visit(i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)))) return false;
      }
    }
    return true;
  }
  // Returns the pids of attached processes that have not used the end. May throw std::bad_alloc.
  std::vector<int> unused_pids(End end) const;
  std::vector<int> member_pids(End end) const;
  memory::InTransit in_transit(End end) const noexcept {
    return control_.arena.transfers().in_transit(memory::pack(control_.block), transferred(end));
  }
  // Returns the pids of the processes that the other end must learn of when they die: the only attached process, or
  // every one with Ending::kEach. May throw std::bad_alloc.
  std::vector<int> pids_to_report(End end) const;
  // Number of members of the end, and number of attached processes.
  std::uint64_t member_count(End end) const noexcept;
  std::uint64_t attached(End end) const noexcept;
  // True if a process can see the end of the stream while it has an object of this end. False for queues.
  bool can_end(End end) const noexcept { return !control_.is_queue() && !control_.keeps_open(end); }
  // True if no process is attached any more. So no more messages will be sent (sending end) or received (receiving
  // end).
  bool is_left(End end) const noexcept;
  // True if the process `observer` at the other end, by default this one, must see the end of the stream.
  bool is_over(End end) const noexcept { return is_over(end, control_.arena.current_identity()); }
  bool is_over(End end, Identity observer) const noexcept;
  // Records the death of a process that was attached through this process, and is no participant of the arena.
  void note_killed(End end, int pid) noexcept { add_killed(state(end).killed, pid); }
  // Records that this process failed, if it is attached to the end.
  void note_failed(End end, memory::Failure failure) noexcept;
  bool has_killed_members(End end) const noexcept;
  // True if the process `observer`, by default this one, must report deaths now: with Ending::kEach, or because of
  // has_only_dead_peers().
  bool has_deaths_to_report(End end) const noexcept {
    return has_deaths_to_report(end, control_.arena.current_identity());
  }
  bool has_deaths_to_report(End end, Identity observer) const noexcept {
    return reports_each_death(end) || has_only_dead_peers(end, observer);
  }
  // With Ending::kQueueRaise: true if a member of the end was killed, and no process except `observer` can use the end
  // any more. A process that has used only the other end does not count, as in a pair.
  bool has_only_dead_peers(End end, Identity observer) const noexcept;
  // True if has_deaths_to_report() may hold for some process before the end is over.
  bool may_report_deaths(End end) const noexcept {
    const Ending ending = control_.ending();
    return (ending == Ending::kQueueRaise || ending == Ending::kEach) && has_killed_members(end);
  }
  // True if calls that wait for processes at the end may have to return an error. Each process checks that for itself.
  bool may_end_waits(End end) const noexcept { return !has_users(end) || may_report_deaths(end); }
  // Returns kPeerDied with the pids of the killed members if has_only_dead_peers() for this process. Takes nothing from
  // the list, so every call reports them until another process has the queue.
  Status report_dead_peers(End end) const;
  // Returns kClosed or kPeerDied if the other end must see that now.
  Status check_open(End end) const { return is_over(end) ? Status(end_error(end)) : report_deaths(end); }
  // With Ending::kEach, returns kPeerDied with the deaths at the end, even if the stream has not ended. Succeeds if
  // there are no deaths, or if another thread has just reported them; the caller then checks its condition again.
  Status report_deaths(End end) const;
  // Does the same, but polls for deaths first. For calls that may return without waiting, since only waits poll for
  // deaths.
  Status check_deaths(End end) const { return control_.ending() == Ending::kEach ? poll_deaths(end) : success(); }
  // Returns the error that the other end gets when this end is over: kShutDown for a shutdown; kPeerDied for the thread
  // that takes the list of deaths; otherwise kClosed.
  Error end_error(End end) const;
  // Returns what a timeout adds to its text: that no process is attached to the end, if a wait goes on without one.
  std::string if_unattended(End end) const;
  // Takes the list of killed peers, and returns kPeerDied with their pids. Nothing if the list is empty, also because
  // another thread has just taken it.
  std::optional<Error> take_deaths(End end) const;
  // Returns the error for a process that uses its passive sender for the first time after the stream has ended.
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
  Status poll_deaths(End end) const;
  bool reports_each_death(End end) const noexcept {
    return control_.ending() == Ending::kEach && has_killed_members(end);
  }
  bool has_other_member(End end, Identity observer) const noexcept;
  // True if a record holds a message that was returned, or that another process than `observer` has taken and may
  // return. The stream has not ended for `observer` then.
  bool may_get_more(Identity observer) const noexcept;
  template <class HasMember>
  bool has_users_by(End end, const HasMember& has_any) const noexcept;
  bool has_transfer(End end) const noexcept {
    return control_.arena.transfers().is_in_transit(memory::pack(control_.block), transferred(end));
  }
  EndState& state(End end) const noexcept { return control_.shared.ends[end]; }

  const Control control_;
};

}  // namespace shmtree::channel
