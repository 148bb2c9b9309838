#include "channel/ends.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "memory/arena.h"
#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;
using memory::Failure;

void add_killed(KilledList& killed, std::int32_t pid, Failure failure) noexcept {
  const memory::DeathWord word = pid == 0 ? kUnknownPid : memory::death_word(pid, failure);
  const auto is_same = [&](memory::DeathWord other) {
    return word < 0 ? other == word : memory::pid_of_death(other) == pid;
  };
  for (const auto& noted : killed.words) {
    if (is_same(load_relaxed(noted))) return;  // added by an interrupted reconcile, or by the process when it failed
  }
  for (auto& free : killed.words) {
    memory::DeathWord none = 0;
    if (compare_swap(free, none, word) || is_same(none)) return;
  }
  store_seq_cst(killed.words[kMaxKilled - 1], memory::kOthers);
}

namespace {

std::string seconds(std::uint64_t count) {
  return std::to_string(count) + " s";
}

// bits_of(word) returns the bits of 64 participants.
template <class Bits>
bool any_bit(const Bits& bits_of) noexcept {
  std::uint32_t word = 0;
  while (word < kParticipantWords && bits_of(word) == 0) ++word;
  return word < kParticipantWords;
}
template <class Bits>
std::uint64_t count_bits(const Bits& bits_of) noexcept {
  std::uint64_t count = 0;
  for (std::uint32_t word = 0; word < kParticipantWords; ++word)
    count += static_cast<std::uint64_t>(std::popcount(bits_of(word)));
  return count;
}

}  // namespace

// Returns the attached ones of 64 participants, a bit each.
std::uint64_t Ends::taking_part(End end, std::uint32_t word) const noexcept {
  const EndState &mine = state(end), &others = state(other(end));
  const std::uint64_t uses_only_the_other =
      load_acquire(others.users.words[word]) & ~load_acquire(mine.users.words[word]);
  return load_seq_cst(mine.members.words[word]) & ~(uses_only_the_other & ~maker_in(word));
}

// Returns the bit of the pipe's creator, if it is in that word.
std::uint64_t Ends::maker_in(std::uint32_t word) const noexcept {
  const std::uint32_t slot = memory::slot_of(control_.maker());
  return slot / 64 == word && control_.is_maker(slot) ? ParticipantSet::bit_of(slot) : 0;
}

// Returns the participants that keep the other end from seeing the end of the stream.
std::uint64_t Ends::keeping_open(End end, std::uint32_t word) const noexcept {
  return control_.is_queue() ? load_seq_cst(state(end).members.words[word]) : taking_part(end, word);
}

bool Ends::has_killed_members(End end) const noexcept {
  return std::ranges::any_of(state(end).killed.words, [](const auto& word) { return load_acquire(word) != 0; });
}

bool Ends::has_attached_member(End end) const noexcept {
  return any_bit([&](std::uint32_t word) { return keeping_open(end, word); });
}

// An end that is passed on moves from a member to a transfer, from a transfer to a member, or from a member to its
// child. The last two moves add a member, then count it in `seats`, and only then remove the end from its old place. So
// if no member was added between two loads of `seats`, the end moved at most from a member to a transfer. Members and
// transfers are read in that order.
template <class HasMember>
bool Ends::has_users_by(End end, const HasMember& has_any) const noexcept {
  std::uint32_t before = load_acquire(state(end).seats);
  for (;;) {
    if (has_any() || is_in_transit(end)) return true;
    fence_acquire();  // members and transfers are read before the count is read again
    const std::uint32_t now = load_acquire(state(end).seats);
    if (now == before) return false;
    before = now;
  }
}

bool Ends::has_users(End end) const noexcept {
  return has_users_by(end, [&] { return has_attached_member(end); });
}

bool Ends::has_other_member(End end, Identity observer) const noexcept {
  const std::uint32_t me = observer == memory::kNoIdentity ? memory::kMaxParticipants : memory::slot_of(observer);
  return any_bit(
      [&](std::uint32_t word) { return taking_part(end, word) & ~(me / 64 == word ? ParticipantSet::bit_of(me) : 0); });
}

bool Ends::has_only_dead_peers(End end, Identity observer) const noexcept {
  if (control_.ending() != Ending::kQueueRaise || !has_killed_members(end) || control_.is_shut_down()) [[likely]]
    return false;
  return !has_users_by(end, [&] { return has_other_member(end, observer); });
}

// bits_of(word) returns the bits of 64 participants.
template <class Bits>
std::vector<int> Ends::pids_of(const Bits& bits_of) const {
  std::vector<int> pids;
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    for (std::uint64_t bits = bits_of(i); bits != 0; bits &= bits - 1) {
      const std::uint32_t slot = i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
      pids.push_back(load_relaxed(control_.arena.participants().slot(slot).pid));
    }
  }
  return pids;
}

std::vector<int> Ends::unused_pids(End end) const {
  return pids_of(
      [&](std::uint32_t word) { return taking_part(end, word) & ~load_acquire(state(end).users.words[word]); });
}

std::vector<int> Ends::member_pids(End end) const {
  return pids_of([&](std::uint32_t word) { return load_acquire(state(end).members.words[word]); });
}

std::vector<int> Ends::pids_to_report(End end) const {
  std::vector<int> pids = pids_of([&](std::uint32_t word) { return keeping_open(end, word); });
  const bool may_be_over = control_.is_queue() || (can_end(end) && control_.ending() != Ending::kWait);
  const bool observer = control_.ending() == Ending::kEach || (may_be_over && pids.size() == 1);
  std::erase_if(pids, [observer](int pid) { return !observer || pid == process_id(); });
  return pids;
}

Ends::Uses Ends::uses(End end) const noexcept {
  Uses found;
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    const std::uint64_t taking = keeping_open(end, i), used = taking & load_acquire(state(end).users.words[i]);
    const std::uint64_t given = taking & load_acquire(state(end).given.words[i]);
    found.is_attached = found.is_attached || taking != 0;
    found.used = found.used || used != 0;
    found.given = found.given || given != 0;
    found.forgotten = found.forgotten || (taking & ~used & ~given & ~maker_in(i)) != 0;
  }
  return found;
}

bool Ends::is_forgotten(End end) const noexcept {
  const Uses found = uses(end);
  return !found.used && !found.given && (found.forgotten || is_in_transit(end));
}

bool Ends::is_only_with_peers(End end) const noexcept {
  return member_count(end) != 0 && !has_users(end) && !is_left(end);
}

std::uint64_t Ends::attached(End end) const noexcept {
  return count_bits([&](std::uint32_t word) { return taking_part(end, word); });
}

std::uint64_t Ends::member_count(End end) const noexcept {
  return count_bits([&](std::uint32_t word) { return load_relaxed(state(end).members.words[word]); });
}

// An end of a queue is not left while any process has it. So only processes that have left the end themselves can see
// that it is over.
bool Ends::is_left(End end) const noexcept {
  if (end == End::kSending && control_.is_shut_down()) return true;
  if (!(can_end(end) || control_.is_queue()) || load_acquire(state(end).begun) == 0 || has_users(end)) return false;
  return control_.ending() != Ending::kWait || !has_killed_members(end);
}

bool Ends::may_get_more(Identity observer) const noexcept {
  if (load_acquire(control_.shared.taken) == 0) return false;
  return for_each_record(control_, [observer](Record& record) {
           const std::uint64_t word = load_acquire(record.state);
           const RecordState state = state_of_record(word);
           return !awaits_ack(state) || (state == RecordState::kTaken && taker_of_record(word) == observer);
         }) == Walked::kStopped;
}

// Reads the ring first, since a queue's messages may be reserved for another process. No message is put any more, so
// each message that has left the ring is in a record or settled.
bool Ends::is_over(End end, Identity observer) const noexcept {
  if (!is_left(end)) return false;
  if (end == End::kReceiving || control_.is_discarded()) return true;
  const bool is_queued = (control_.is_queue() || control_.is_shut_down()) &&
                         load_seq_cst(control_.shared.tail) != load_seq_cst(control_.shared.head);
  return !is_queued && !may_get_more(observer);
}

Status Ends::poll_deaths(End end) const {
  memory::poll_for_deaths(control_.arena, wait_policy::kLongPollIntervalNs);
  return report_deaths(end);
}

Status Ends::report_deaths(End end) const {
  if (!reports_each_death(end)) [[likely]]
    return success();
  auto died = take_deaths(end);
  return died ? Status(std::move(*died)) : success();
}

Status Ends::report_dead_peers(End end) const {
  if (!has_only_dead_peers(end, control_.arena.current_identity())) [[likely]]
    return success();
  const std::string use = end == End::kSending ? "put into" : "get from";
  Error error{Code::kPeerDied, "no other process is left that could " + use + " this queue, and these"};
  std::vector<memory::DeathWord> found;
  for (const auto& noted : state(end).killed.words) {
    if (const memory::DeathWord word = load_relaxed(noted); word != 0) found.push_back(word);
  }
  memory::describe_deaths(error, found);
  return error;
}

std::optional<Error> Ends::take_deaths(End end) const {
  if (!has_killed_members(end)) return std::nullopt;
  const std::string peers = end == End::kSending ? "senders" : "receivers";
  Error error{Code::kPeerDied, has_users(end) ? "these " + peers : "no " + peers + " are left, and these"};
  error.pids.reserve(kMaxKilled);
  // Reserved now, since the loop removes words from the list.
  error.message.reserve(error.message.size() + memory::kMaxDeathVerb + kMaxKilled * memory::kMaxDeathText);
  memory::DeathWord found[kMaxKilled];
  std::size_t count = 0;
  for (auto& noted : state(end).killed.words) {
    const memory::DeathWord word = load_relaxed(noted) == 0 ? 0 : exchange_seq_cst(noted, 0);
    if (word != 0) found[count++] = word;
  }
  if (count == 0) return std::nullopt;  // another thread reports them
  memory::describe_deaths(error, std::span(found, count));
  return error;
}

void Ends::note_failed(End end, Failure failure) noexcept {
  if (is_attached(end, control_.arena.current_identity())) add_killed(state(end).killed, process_id(), failure);
}

Error Ends::end_error(End end) const {
  if (end == End::kSending && control_.is_shut_down()) return shut_down_error();
  if (control_.is_queue()) {
    return Error{Code::kClosed,
                 end == End::kSending
                     ? "no process can put into this queue: every sending half is closed, or its process has ended"
                     : "no process can get from this queue: every receiving half is closed, or its process has ended"};
  }
  if (auto died = take_deaths(end)) return std::move(*died);
  return Error{Code::kClosed, end == End::kSending ? "the stream has ended: every sender has closed or exited"
                                                   : "no receivers are left: every one has closed or exited"};
}

std::string Ends::if_unattended(End end) const {
  const bool goes_on = control_.keeps_open(end) || control_.ending() == Ending::kWait;
  if (!goes_on || has_users(end)) return "";
  return end == End::kSending ? "; no sender is attached" : "; no receiver is attached";
}

Error Ends::left_before_use() const {
  return Error{
      Code::kClosed,
      "the stream ended before this process used its inherited sender; every other sender has closed or exited. "
      "Pass the sender as a Process argument, or use it before the others close"};
}

Status Ends::check_transfer(std::uint64_t number, End end, int giver_pid) const {
  if (number == 0 || control_.is_queue()) return success();
  if (memory::transferred(number) != transferred(end)) {
    return Error{Code::kInvalid, end == End::kSending ? "this is the handle of a receiving end, not of a sending one"
                                                      : "this is the handle of a sending end, not of a receiving one"};
  }
  memory::Expiry expiry(control_.arena.participants());
  memory::Transfer* transfer = control_.arena.transfers().find(number);
  if (transfer != nullptr && expiry.counts(*transfer)) return success();
  // A transfer that was loaded before, or too late, does no harm while its sender lives, or others keep the stream
  // open.
  if (control_.arena.participants().is_alive(memory::giver_of(number)) || !is_over(end)) return success();
  std::string when, ended = "has ended";
  if (transfer != nullptr) {
    const std::uint64_t state = load_acquire(transfer->state);
    const std::uint64_t made_s = memory::second_of(load_relaxed(transfer->made_ns));
    when.append(" ").append(seconds(expiry.now_s() - made_s)).append(" ago");
    if (memory::giver_is_gone(state)) {
      ended = "was found to have ended " + seconds(memory::gone_for(state, expiry.now_s())) + " ago";
    }
  }
  return Error{Code::kClosed, "this end was pickled" + when + " by process " + std::to_string(giver_pid) + ", which " +
                                  ended + ": a pickled end keeps a stream open for " + seconds(memory::kEndLifeS) +
                                  " after that, and this stream is over"};
}

}  // namespace shmtree::channel
