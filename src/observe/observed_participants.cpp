#include "observe/observed_participants.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "platform/clock.h"

namespace shmtree::observer {

namespace {

Process seen_process(const std::vector<Process>& processes, int said) {
  const auto is_it = [said](const Process& process) { return process.status.pid_inside == said; };
  const auto first = std::find_if(processes.begin(), processes.end(), is_it);
  if (first == processes.end() || std::find_if(first + 1, processes.end(), is_it) != processes.end()) return {};
  return *first;
}

std::string_view word_of(memory::WaitFor what) noexcept {
  using memory::WaitFor;
  switch (what) {
    case WaitFor::kNothing:
    case WaitFor::kUnsaid: return "nothing";
    case WaitFor::kMessage: return "message";
    case WaitFor::kSpace: return "space";
    case WaitFor::kMemory: return "memory";
    case WaitFor::kAcks: return "acknowledgements";
    case WaitFor::kTasks: return "tasks";
    case WaitFor::kReservation: return "reservation";
    case WaitFor::kNewer: return "newer version";
    case WaitFor::kRows: return "rows";
    case WaitFor::kRateLimit: return "rate limit";
    case WaitFor::kArray: return "array";
    case WaitFor::kLock: return "lock";
  }
  return "unknown";
}

// The process may be changing its name, so the copy may mix two names.
std::string name_of(const memory::Participant& said) {
  char text[sizeof said.name];
  for (std::uint32_t i = 0; i < memory::kNameWords; ++i) {
    const std::uint64_t word = said.name[i].load();
    std::memcpy(text + i * sizeof word, &word, sizeof word);
  }
  return {text, strnlen(text, sizeof text)};
}

}  // namespace

ObservedParticipants::ObservedParticipants(const ArenaFile& file, const memory::ArenaHeader& header,
                                           const std::vector<Process>& processes) {
  const std::uint32_t slots = std::min(header.participants_high.load(), memory::kMaxParticipants);
  const auto written = std::make_unique<memory::Participant[]>(slots);
  if (!file.read(memory::kHeaderBytes, written.get(), slots * sizeof(memory::Participant))) return;
  const std::int64_t now = platform::monotonic_ns();
  for (Slot slot = 0; slot < slots; ++slot) {
    const memory::Participant& said = written[slot];
    const auto status = static_cast<memory::ParticipantStatus>(said.status.load());
    if (status == memory::ParticipantStatus::kFree) continue;
    ObservedParticipant& info = participants_.emplace_back();
    info.slot = slot;
    info.namespace_pid = said.pid.load();
    info.name = name_of(said);
    info.alive = file.is_locked(slot);
    // A dead participant matches no process: one with the same pid in another namespace is a different process.
    const Process process = info.alive ? seen_process(processes, info.namespace_pid) : Process{};
    info.pid = process.pid;
    info.stopped = process.status.is_stopped;
    info.leaving = status == memory::ParticipantStatus::kDetached;
    info.pinned = said.pinned.load() != 0 && said.pinned.load() == said.generation.load();
    info.seconds = seconds_of(now - std::clamp<std::int64_t>(said.attached_ns.load(), 0, now));
    slots_.push_back(slot);
    generations_.push_back(said.generation.load());
  }
  for (std::size_t i = 0; i < participants_.size(); ++i) participants_[i].waits = waits_of(written[slots_[i]], now);
}

std::vector<ObservedWait> ObservedParticipants::waits_of(const memory::Participant& said, std::int64_t now_ns) const {
  std::vector<ObservedWait> waits;
  for (const memory::Wait& one : said.waits) {
    const memory::WaitFor what = memory::what_of_wait(one.what.load());
    if (what <= memory::WaitFor::kUnsaid || what > memory::WaitFor::kLock) continue;
    ObservedWait& wait = waits.emplace_back();
    wait.what = word_of(what);
    wait.thread = one.thread.load();
    wait.seconds = seconds_of(now_ns - std::clamp<std::int64_t>(one.since_ns.load(), 0, now_ns));
    if (what == memory::WaitFor::kLock) {
      wait.lock_owner = owner_of_lock(memory::kHeld | static_cast<std::uint32_t>(one.about.load()));
    } else {
      wait.block = one.about.load();
    }
  }
  return waits;
}

std::optional<std::size_t> ObservedParticipants::find(Slot slot) const noexcept {
  const auto found = std::lower_bound(slots_.begin(), slots_.end(), slot);
  if (found == slots_.end() || *found != slot) return std::nullopt;
  return static_cast<std::size_t>(found - slots_.begin());
}

bool ObservedParticipants::is_alive(memory::Identity identity) const noexcept {
  const auto index = find(memory::slot_of(identity));
  return index && participants_[*index].alive && generations_[*index] == memory::generation_of(identity);
}

int ObservedParticipants::pid_of(Slot slot) const noexcept {
  const auto index = find(slot);
  if (!index) return 0;
  const ObservedParticipant& one = participants_[*index];
  return one.alive || one.pid != 0 ? one.pid : one.namespace_pid;
}

std::vector<int> ObservedParticipants::pids_of(const std::vector<Slot>& slots) const {
  std::vector<int> pids;
  for (const Slot slot : slots) pids.push_back(pid_of(slot));
  return pids;
}

std::optional<int> ObservedParticipants::owner_of_lock(std::uint32_t word) const noexcept {
  if ((word & memory::kHeld) == 0) return std::nullopt;
  const auto index = find(memory::slot_of(word));
  if (!index || generations_[*index] != memory::generation_of(word)) return std::nullopt;
  return pid_of(slots_[*index]);
}

std::vector<Slot> ObservedParticipants::living(const memory::ParticipantSet& set) const {
  std::vector<Slot> found;
  set.for_each([&](Slot slot) {
    if (lives(slot)) found.push_back(slot);
  });
  return found;
}

}  // namespace shmtree::observer
