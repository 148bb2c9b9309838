#include "observe/people.h"

#include <algorithm>

#include "platform/clock.h"
#include "platform/other_process.h"

namespace shmtree::observe {

namespace {

int seen_pid(const std::vector<Process>& processes, int said) {
  const auto is_it = [said](const Process& process) { return process.pid_inside == said; };
  const auto first = std::find_if(processes.begin(), processes.end(), is_it);
  if (first == processes.end() || std::find_if(first + 1, processes.end(), is_it) != processes.end()) return 0;
  return first->pid;
}

}  // namespace

People::People(const ArenaFile& file, const memory::ArenaHeader& header, const std::vector<Process>& processes) {
  const std::uint32_t slots = std::min(header.participants_high.load(), memory::kMaxParticipants);
  const auto written = std::make_unique<memory::Participant[]>(slots);
  if (!file.read(memory::kHeaderBytes, written.get(), slots * sizeof(memory::Participant))) return;
  const std::int64_t now = platform::monotonic_ns();
  for (Slot slot = 0; slot < slots; ++slot) {
    const memory::Participant& said = written[slot];
    const auto status = static_cast<memory::ParticipantStatus>(said.status.load());
    if (status == memory::ParticipantStatus::kFree) continue;
    ParticipantInfo& info = people_.emplace_back();
    info.slot = slot;
    info.said_pid = said.pid.load();
    info.alive = file.is_locked(slot);
    info.pid = seen_pid(processes, info.said_pid);
    info.stopped = info.alive && info.pid != 0 && platform::is_stopped(info.pid);
    info.leaving = status == memory::ParticipantStatus::kDetached;
    info.pinned = said.pinned.load() != 0 && said.pinned.load() == said.generation.load();
    info.attached_ns = now - std::clamp<std::int64_t>(said.attached_ns.load(), 0, now);
    generations_.push_back(said.generation.load());
  }
  for (ParticipantInfo& info : people_) info.waits = waits_of(written[info.slot], now);
}

std::vector<WaitInfo> People::waits_of(const memory::Participant& said, std::int64_t now_ns) const {
  std::vector<WaitInfo> waits;
  for (const memory::Wait& one : said.waits) {
    const auto what = static_cast<memory::WaitFor>(one.what.load());
    if (what <= memory::WaitFor::kUnsaid || what > memory::WaitFor::kLock) continue;
    WaitInfo& wait = waits.emplace_back();
    wait.what = what;
    wait.thread = one.thread.load();
    wait.waited_ns = now_ns - std::clamp<std::int64_t>(one.since_ns.load(), 0, now_ns);
    if (what == memory::WaitFor::kLock) {
      wait.owner = owner_of_lock(memory::kHeld | static_cast<std::uint32_t>(one.about.load()));
    } else {
      wait.block = one.about.load();
    }
  }
  return waits;
}

const ParticipantInfo* People::find(Slot slot) const noexcept {
  const auto found = std::lower_bound(people_.begin(), people_.end(), slot,
                                      [](const ParticipantInfo& info, Slot wanted) { return info.slot < wanted; });
  return found == people_.end() || found->slot != slot ? nullptr : &*found;
}

bool People::is_alive(memory::Identity identity) const noexcept {
  const ParticipantInfo* found = find(memory::slot_of(identity));
  return found != nullptr && found->alive && generation_of(*found) == memory::generation_of(identity);
}

std::optional<Slot> People::owner_of_lock(std::uint32_t word) const noexcept {
  if ((word & memory::kHeld) == 0) return std::nullopt;
  const ParticipantInfo* owner = find(memory::slot_of(word));
  if (owner == nullptr || generation_of(*owner) != memory::generation_of(word)) return std::nullopt;
  return owner->slot;
}

std::vector<Slot> People::living(const memory::ParticipantSet& set) const {
  std::vector<Slot> found;
  set.for_each([&](Slot slot) {
    if (lives(slot)) found.push_back(slot);
  });
  return found;
}

}  // namespace shmtree::observe
