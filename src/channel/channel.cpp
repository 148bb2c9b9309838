#include "channel/channel.h"

#include <bit>
#include <cstring>
#include <new>

#include "channel/recovery.h"
#include "memory/control_block.h"
#include "memory/transfers.h"
#include "platform/errors.h"
#include "platform/never_destroyed.h"
#include "platform/other_version.h"

namespace shmtree::channel {

using namespace platform;
using memory::BlockKind;

namespace {

constexpr std::uint32_t kMaxDropped = 64;  // abandoned channels that trigger a reconcile when a channel is created

Error no_channel(const std::string& why) {
  return Error{Code::kIncompatible, "this block of the arena is not a channel: " + why};
}

// Returns the value of `on_peer_death`, in the terms of pairs and of queues.
const char* word_of(Ending ending) noexcept {
  switch (ending) {
    case Ending::kRaise:
    case Ending::kQueueRaise: return "raise";
    case Ending::kWait:
    case Ending::kNever: return "wait";
    case Ending::kEach: return "each";
  }
  return "unknown (the channel is damaged)";
}

const char* word_of(KeepOpen keep_open) noexcept {
  switch (keep_open) {
    case KeepOpen::kNo: return "false";
    case KeepOpen::kReceivers: return "true";
    case KeepOpen::kBoth: return "\"both\"";
  }
  return "unknown (the channel is damaged)";
}

std::uint64_t first_slots(std::uint64_t capacity) noexcept {
  return capacity == 0 ? kFirstSlots : std::min(kFirstSlots, std::bit_ceil(capacity));
}

void pass_to_child(Arena& arena, Identity, Identity child) {
  channels().for_each_unlocked([&](Channel& channel, bool) {
    if (channel.arena().get() == &arena) channel.membership().pass_to_child(child);
  });
}

// Installed before any arena can exist, since a process recovers an arena even if it has opened none of its channels.
[[maybe_unused]] const bool g_installed = [] {
  channels();  // created now, since the hook runs while every fork-safe mutex is held
  memory::ReconcilePass::set_channel_walker(&repair_channel);
  memory::Reclaimer::set_channel_waker(&wake_after_loss);
  Arena::set_fork_hook(&pass_to_child);
  static constinit ForkHandlers handlers{.child = [] {
    channels().for_each_unlocked([](Channel& channel, bool) { channel.membership().drop_leaving(); });
  }};
  add_fork_handlers(handlers);
  return true;
}();

}  // namespace

platform::WeakRegistry<Channel>& channels() noexcept {
  return never_destroyed<platform::WeakRegistry<Channel>>();
}

Result<std::shared_ptr<Channel>> Channel::create(std::shared_ptr<Arena> arena, const ChannelOptions& options,
                                                 const WaitContext& wait) {
  if (options.max_attempts > kMaxAttempts) {
    return Error{Code::kInvalid, "max_attempts is " + std::to_string(options.max_attempts) + "; it must be at most " +
                                     std::to_string(kMaxAttempts)};
  }
  if (options.capacity > kMaxCapacity) {
    return Error{Code::kInvalid, "capacity is " + std::to_string(options.capacity) + "; it must be at most " +
                                     std::to_string(kMaxCapacity) + ", or 0 for no limit"};
  }
  memory::end_lost_transfers();
  memory::sweep_transfers();
  // If no call ever waits, only this reconcile frees abandoned channels.
  if (load_relaxed(arena->header().abandoned_channels) >= kMaxDropped && arena->participants().check(0)) {
    Status repaired = arena->reconcile(wait);
    if (!repaired) return std::move(repaired).error();
  }
  const std::uint64_t slots = first_slots(options.capacity);
  const std::uint64_t slot_bytes = slot_bytes_for(options.capacity);
  auto ring = arena->allocate(segment_bytes(slots, slot_bytes), BlockKind::kSegment, wait);
  if (!ring) return std::move(ring).error();
  new (ring->data()) SegmentHeader{0, slots, {0}, {}};
  auto control = arena->allocate(sizeof(ChannelHeader), BlockKind::kChannel, wait);
  if (!control) return std::move(control).error();
  std::memset(control->data(), 0, memory::kPageBytes);
  auto* header = new (control->data()) ChannelHeader{};
  header->magic = kChannelMagic;
  header->version = kChannelVersion;
  header->ending = static_cast<std::uint32_t>(options.ending);
  header->capacity = options.capacity;
  header->max_bytes = options.max_bytes;
  store_relaxed(header->limit, options.capacity);
  header->allow_pickle = options.allow_pickle ? 1 : 0;
  header->slot_bytes = slot_bytes;
  header->max_unacked = options.max_unacked;
  header->max_attempts = static_cast<std::uint32_t>(options.max_attempts);
  header->keep_open = static_cast<std::uint32_t>(options.keep_open);
  header->requests = options.takes_requests ? 1 : 0;
  header->drop_oldest = options.drop_oldest ? 1 : 0;
  header->portable = options.portable ? kAlwaysPortable : kNotPortable;
  header->made_ns = monotonic_ns();
  store_relaxed(header->named, options.is_named ? 1u : 0u);
  header->maker = options.is_pipe ? arena->current_identity() : memory::kNoIdentity;
  store_relaxed(header->head_segment, memory::pack(ring->ref()));
  store_relaxed(header->tail_segment, memory::pack(ring->ref()));
  // The channel's block is held before its ring is published. So if the process dies in between, recovery frees the
  // ring.
  auto lease = arena->hold_new(std::move(*control));
  if (!lease) return std::move(lease).error();
  ring->publish();
  std::shared_ptr<Channel> channel(new Channel(std::move(arena), std::move(*lease), slot_bytes));
  return channels().insert(channel, [](const Channel&) { return false; });  // no other thread knows its block yet
}

Result<std::shared_ptr<Channel>> Channel::open(std::shared_ptr<Arena> arena, BlockRef block, const WaitContext& wait) {
  const auto is_it = [&arena = *arena, block](const Channel& channel) {
    return channel.arena_.get() == &arena && channel.lease_.ref() == block;
  };
  if (auto existing = channels().find(is_it)) return existing;
  if (!arena->blocks().geometry().contains(block.id)) return no_channel("the arena has no such block");
  auto lease = memory::open_control_block(*arena, block, BlockKind::kChannel, sizeof(ChannelHeader), "a channel", wait);
  if (!lease) return std::move(lease).error();
  const auto& header = *reinterpret_cast<const ChannelHeader*>(lease->data());
  if (header.magic != kChannelMagic) return no_channel("it has no channel header");
  if (header.version != kChannelVersion) {
    return platform::other_version("the channel has layout version", header.version, kChannelVersion);
  }
  const std::uint64_t slot_bytes = load_once(header.slot_bytes);
  if (!is_slot_size(slot_bytes)) return no_channel("its slots have " + std::to_string(slot_bytes) + " bytes");
  std::shared_ptr<Channel> channel(new Channel(std::move(arena), std::move(*lease), slot_bytes));
  return channels().insert(channel, is_it);
}

Channel::Channel(std::shared_ptr<Arena> arena, Lease lease, std::uint64_t slot_bytes)
    : arena_(std::move(arena)),
      lease_(std::move(lease)),
      control_{*arena_, *reinterpret_cast<ChannelHeader*>(lease_.data()), lease_.ref(), slot_bytes} {}

Channel::~Channel() {
  channels().erase(this);
  membership_.leave_all();
  const bool has_messages = head_.has_messages() || records_.unacked() != 0;
  const memory::BlockEntry* const block = arena_->blocks().entry(this->block().id);
  lease_.reset();
  // Only transfers keep the channel now. If its own messages carry them, only a recovery finds that it can be freed.
  if (has_messages && load_seq_cst(block->refcount) != 0 && block->holders.is_empty()) {
    add(arena_->header().abandoned_channels, 1u);
  }
  memory::sweep_transfers();
}

void Channel::note_named() noexcept {
  store_relaxed(control_.shared.named, 1u);
}

void Channel::require_portable() noexcept {
  if (!is_portable()) store_once(control_.shared.portable, kPortableByNow);
}

Status Channel::check_options(const ChannelOptions& options) const {
  const ChannelHeader& shared = control_.shared;
  if (takes_requests() != options.takes_requests) {
    return Error{Code::kInvalid,
                 takes_requests() ? "it belongs to a Service" : "it belongs to a pair, not to a Service"};
  }
  OptionDifferences others;
  others.compare("capacity", shared.capacity, options.capacity);
  others.compare("max_bytes", shared.max_bytes, options.max_bytes);
  others.compare("on_peer_death", std::string(word_of(ending())), word_of(options.ending));
  others.compare_flags("allow_pickle", allows_pickle(), options.allow_pickle);
  others.compare("max_unacked", shared.max_unacked, options.max_unacked);
  others.compare("max_attempts", shared.max_attempts, options.max_attempts);
  others.compare("keep_open", std::string(word_of(control_.keep_open())), word_of(options.keep_open));
  const auto on_full = [](bool drops) { return std::string(drops ? "drop_oldest" : "block"); };
  others.compare("on_full", on_full(control_.drops_oldest()), on_full(options.drop_oldest));
  others.compare_flags("portable", control_.is_portable(), options.portable);
  return others.of(takes_requests() ? "a Service" : "a channel");
}

ChannelStats Channel::stats() {
  const ChannelHeader& shared = control_.shared;
  const std::uint64_t dropped = this->dropped(), head = load_acquire(shared.head);
  return {
      .put = load_acquire(shared.tail),
      .received = head - std::min(dropped, head),
      .queued = size(),
      .queued_bytes = control_.queued_bytes(),
      .taken = records_.unacked(),
      .returned = load_acquire(shared.returned),
      .dead_letters = load_acquire(shared.rejected),
      .unfinished = tasks_.unfinished(),
      .capacity = shared.capacity,
      .max_bytes = shared.max_bytes,
      .max_unacked = shared.max_unacked,
      .max_attempts = shared.max_attempts,
      .senders = ends_.member_count(End::kSending),
      .receivers = ends_.member_count(End::kReceiving),
      .senders_attached = ends_.attached(End::kSending),
      .receivers_attached = ends_.attached(End::kReceiving),
      .senders_in_transit = ends_.in_transit(End::kSending).count,
      .receivers_in_transit = ends_.in_transit(End::kReceiving).count,
      .dropped = dropped,
      .senders_never_used = ends_.unused_pids(End::kSending),
      .receivers_never_used = ends_.unused_pids(End::kReceiving),
  };
}

// A process that is killed before detach() is reported at the ends that it has not left yet, as a failure must be.
void Channel::leave_all() noexcept {
  const auto left = channels().all();
  for (const auto& channel : left) channel->membership_.leave_at_exit();
  for (const auto& channel : left) channel->arena_->participants().detach();
}

}  // namespace shmtree::channel
