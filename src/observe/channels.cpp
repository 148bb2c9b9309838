#include "observe/channels.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "channel/layout.h"
#include "memory/transfer_table.h"
#include "platform/clock.h"
#include "platform/other_version.h"

namespace shmtree::observer {

using channel::ChannelHeader;
using channel::End;
using channel::kEnds;
using channel::Shutdown;
using memory::Transfer;
using memory::Transferred;

namespace {

// Returns false for a process that has used only the other end; see Ends.
bool takes_part(const ChannelHeader& header, End end, Slot slot) {
  return header.ends[end].users.contains(slot) || !header.ends[other(end)].users.contains(slot);
}

ObservedEnd& end_of(ObservedChannel& info, End end) noexcept {
  return end == End::kSending ? info.senders : info.receivers;
}

std::string_view word_of(channel::Ending ending) noexcept {
  switch (ending) {
    case channel::Ending::kRaise:
    case channel::Ending::kQueueRaise: return "raise";
    case channel::Ending::kWait: return "wait";
    case channel::Ending::kEach: return "each";
    case channel::Ending::kNever: return "never";
  }
  return "unknown";
}

void fill_counts(const ChannelHeader& header, ObservedChannel& info) {
  const std::uint64_t head = header.head.load(), tail = std::max(header.tail.load(), head);
  const std::uint64_t taken = header.taken.load(), done = header.tasks_done.load();
  const auto shutdown = static_cast<Shutdown>(header.shutdown.load());
  info.shut_down = shutdown != Shutdown::kNot;
  info.put = tail;
  info.dropped = header.dropped.load();
  info.received = head - std::min(info.dropped, head);
  info.returned = header.returned.load();
  info.queued = shutdown == Shutdown::kDiscarded ? 0 : tail - head + info.returned;
  info.queued_bytes = std::max(header.bytes_in.load(), header.bytes_out.load()) - header.bytes_out.load();
  info.taken = std::max(taken, info.returned) - info.returned;
  info.dead_letters = header.rejected.load();
  const std::uint64_t last = shutdown == Shutdown::kDiscarded ? header.discarded_from.load() : tail;
  info.unfinished = std::max(last, done + info.dead_letters) - (done + info.dead_letters);
}

void fill_options(const ChannelHeader& header, ObservedChannel& info) {
  info.capacity = header.capacity;
  info.max_bytes = header.max_bytes;
  info.max_unacked = header.max_unacked;
  info.max_attempts = header.max_attempts;
  info.limit = header.limit.load();
  info.on_peer_death = word_of(static_cast<channel::Ending>(header.ending));
  info.allow_pickle = header.allow_pickle != 0;
  constexpr std::string_view kKeepOpen[] = {"no", "receivers", "both"};
  info.keep_open = kKeepOpen[std::min(header.keep_open, 2u)];
  info.drop_oldest = header.drop_oldest != 0;
}

// Includes the time of current sleepers, which they add to `slept_ns` only when they wake.
double slept_seconds(const memory::SleepTime& time, const ObservedParticipants& participants) {
  const std::int64_t since = time.since_ns.load(), now = platform::monotonic_ns();
  const bool is_attached = since > 0 && since < now && !participants.living(time.sleepers).empty();
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max() / 2;
  const auto counted = static_cast<std::int64_t>(std::min<std::uint64_t>(time.slept_ns.load(), kMax));
  return seconds_of(counted + (is_attached ? now - since : 0));
}

void fill_end(const ChannelHeader& header, End end, const ObservedParticipants& participants, ObservedEnd& info) {
  const std::vector<Slot> members = participants.living(header.ends[end].members);
  info.members = members.size();
  for (const Slot slot : members) {
    if (!takes_part(header, end, slot)) continue;
    info.pids.push_back(participants.pid_of(slot));
    if (!header.ends[end].users.contains(slot)) info.never_used.push_back(info.pids.back());
  }
  const bool sends = end == End::kSending;
  info.locked_by = participants.owner_of_lock(sends ? header.senders_lock.load() : header.receivers_lock.load());
  info.waits = sends ? header.space.waiters.load() != 0 || header.freed_bytes.waiters.load() != 0
                     : header.items.waiters.load() != 0;
}

}  // namespace

EndsInTransit find_ends_in_transit(const ArenaFile& file, const memory::ArenaHeader& header,
                                   const ObservedParticipants& participants) {
  EndsInTransit found;
  const std::uint64_t now_s = memory::second_of(platform::monotonic_ns());
  const auto count = [&](const Transfer& transfer) {
    const std::uint64_t state = transfer.state.load();
    const auto what = memory::transferred(state);
    if (state == 0 || (what != Transferred::kSendingEnd && what != Transferred::kReceivingEnd)) return;
    const bool counts = memory::giver_is_gone(state) ? memory::outlives_giver(state, now_s)
                                                     : participants.is_alive(memory::giver_of(state));
    const End end = what == Transferred::kSendingEnd ? End::kSending : End::kReceiving;
    if (counts) ++found[transfer.block.load()][end];
  };
  std::ranges::for_each(header.transfers, count);
  std::uint64_t packed = header.more_transfers.load();
  for (int links = 0; packed != 0 && links < memory::kMaxChainLength; ++links) {
    const BlockRef ref = memory::unpack(packed);
    memory::ChainHeader chain{};
    if (!file.read_block(ref, 0, &chain, sizeof chain)) break;
    constexpr std::uint64_t kAtOnce = 256;
    Transfer transfers[kAtOnce]{};
    const std::uint64_t there = file.present(ref, sizeof chain, chain.count, sizeof(Transfer));
    for (std::uint64_t first = 0; first < there; first += kAtOnce) {
      const std::uint64_t number = std::min(kAtOnce, there - first);
      const std::uint64_t offset = sizeof chain + first * sizeof(Transfer);
      if (!file.read_block(ref, offset, transfers, number * sizeof(Transfer))) return found;
      std::for_each_n(transfers, number, count);
    }
    packed = chain.next.load();
  }
  return found;
}

ObservedChannel snapshot_channel(const ArenaFile& file, BlockRef block, const ObservedParticipants& participants,
                                 const EndsInTransit& in_transit) {
  ObservedChannel info;
  info.block = memory::pack(block);
  const auto header = file.read_still<ChannelHeader>(block, info.consistent);
  if (header == nullptr) {
    info.refused = "it was freed while it was being read";
  } else if (header->magic != channel::kChannelMagic) {
    info.refused = "it has no channel header";
  } else if (header->version != channel::kChannelVersion) {
    info.refused = platform::other_version("it has layout version", header->version, channel::kChannelVersion).message;
  } else {
    fill_options(*header, info);
    fill_counts(*header, info);
    for (const End end : kEnds) fill_end(*header, end, participants, end_of(info, end));
    info.full_seconds = slept_seconds(header->slept[End::kSending], participants);
    info.empty_seconds = slept_seconds(header->slept[End::kReceiving], participants);
    if (const auto found = in_transit.find(info.block); found != in_transit.end()) {
      info.senders.in_transit = found->second[End::kSending];
      info.receivers.in_transit = found->second[End::kReceiving];
    }
  }
  return info;
}

}  // namespace shmtree::observer
