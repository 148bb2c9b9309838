#include "channel/channel.h"

#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "channel/grants.h"
#include "channel/recovery.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;
using memory::BlockKind;

namespace {

constexpr std::uint32_t kMostDropped = 64;  // channels that nobody has, when one more is made

Error no_channel(const std::string& why) {
  return Error{Code::kIncompatible, "this block is no channel: " + why};
}

std::uint64_t first_slots(std::uint64_t capacity) noexcept {
  return capacity == 0 ? kFirstSlots : std::min(kFirstSlots, std::bit_ceil(capacity));
}

}  // namespace

Result<std::shared_ptr<Channel>> Channel::create(std::shared_ptr<Arena> arena, const ChannelOptions& options) {
  const WaitContext wait;
  if (options.max_attempts > kMostAttempts) {
    return Error{Code::kInvalid, "max_attempts is " + std::to_string(options.max_attempts) + "; it must be at most " +
                                     std::to_string(kMostAttempts)};
  }
  KeptForGrants::sweep();
  // Where nobody ever waits, nothing else has those reclaimed that were dropped.
  if (load_relaxed(arena->header().garbage) >= kMostDropped && arena->participants().check(0)) {
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
  header->max_unsettled = options.max_unsettled;
  header->max_attempts = static_cast<std::uint32_t>(options.max_attempts);
  store_relaxed(header->head_segment, memory::pack(ring->ref()));
  store_relaxed(header->tail_segment, memory::pack(ring->ref()));
  // The channel is known before its ring leaves its writer: a kill in between leaves no ring that nothing leads to.
  auto lease = arena->hold_new(std::move(*control));
  if (!lease) return std::move(lease).error();
  ring->publish();
  std::shared_ptr<Channel> channel(new Channel(std::move(arena), std::move(*lease), slot_bytes));
  Channels::insert(channel);
  return channel;
}

Result<std::shared_ptr<Channel>> Channel::open(std::shared_ptr<Arena> arena, BlockRef block, const WaitContext& wait) {
  if (auto known = Channels::find(*arena, block)) return known;
  if (!arena->blocks().geometry().contains(block.id)) return no_channel("there is no such block");
  auto lease = arena->hold_existing(block, wait);
  if (!lease) return std::move(lease).error();
  const memory::BlockEntry& entry = *arena->blocks().entry(block.id);
  if (load_relaxed(entry.kind) != static_cast<std::uint32_t>(BlockKind::kChannel) ||
      load_relaxed(entry.committed) < sizeof(ChannelHeader)) {
    return no_channel("it was made for something else");
  }
  const auto& header = *reinterpret_cast<const ChannelHeader*>(lease->data());
  if (header.magic != kChannelMagic) return no_channel("its first bytes are others");
  if (header.version != kChannelVersion) {
    return Error{Code::kIncompatible, "the channel has layout version " + std::to_string(header.version) +
                                          ", this is version " + std::to_string(kChannelVersion)};
  }
  const std::uint64_t slot_bytes = load_once(header.slot_bytes);
  if (!is_slot_size(slot_bytes)) return no_channel("its slots are of " + std::to_string(slot_bytes) + " bytes");
  std::shared_ptr<Channel> channel(new Channel(std::move(arena), std::move(*lease), slot_bytes));
  return Channels::insert(channel);
}

Channel::~Channel() {
  Channels::erase(this);
  for (const End which : {End::kSending, End::kReceiving}) {
    // None when this object lost the race to be the process's one for the channel.
    if (local_ends_[static_cast<std::uint32_t>(which)] == 0) continue;
    local_ends_[static_cast<std::uint32_t>(which)] = 1;
    leave(which);
  }
  for (const End which : {End::kSending, End::kReceiving}) unwatch(which);  // also asked for without an end
  if (has_given_.load(std::memory_order_relaxed)) KeptForGrants::add(std::move(lease_));
  KeptForGrants::sweep();
}

// The segment that a word of shared memory names; none when there cannot be one.
Segment Channel::segment(std::uint64_t packed) const noexcept {
  const BlockRef ref = memory::unpack(packed);
  if (packed == 0 || !arena_->blocks().is_current(ref)) return {};
  return checked_segment(arena_->blocks().address(ref.id), arena_->blocks().room_of(ref.id), slot_bytes_);
}

std::uint64_t Channel::size() const noexcept {
  const ChannelHeader& shared = header();
  if (static_cast<Shutdown>(load_acquire(shared.shutdown)) == Shutdown::kDiscarded) return 0;
  for (;;) {  // exact: head did not move while tail was read
    const std::uint64_t head = load_full(shared.head);
    const std::uint64_t tail = load_full(shared.tail);
    const std::uint32_t returned = load_full(shared.returned);
    if (load_full(shared.head) == head) return std::max(tail, head) - head + returned + kept_here();
  }
}

ChannelStats Channel::stats() noexcept {
  const ChannelHeader& shared = header();
  ChannelStats stats{};
  stats.put = load_acquire(shared.tail);
  stats.received = load_acquire(shared.head);
  stats.queued = size();
  stats.queued_bytes = load_acquire(shared.bytes_in) - load_acquire(shared.bytes_out);
  stats.taken = unsettled();
  stats.returned = load_acquire(shared.returned);
  stats.rejected = load_acquire(shared.rejected);
  stats.unfinished = unfinished_tasks();
  stats.capacity = shared.capacity;
  stats.max_bytes = shared.max_bytes;
  stats.max_unsettled = shared.max_unsettled;
  stats.max_attempts = shared.max_attempts;
  for (std::uint32_t i = 0; i < kParticipantWords; ++i) {
    stats.senders += static_cast<std::uint64_t>(std::popcount(load_relaxed(shared.ends[0].members.words[i])));
    stats.receivers += static_cast<std::uint64_t>(std::popcount(load_relaxed(shared.ends[1].members.words[i])));
  }
  stats.senders_on_their_way = on_their_way(End::kSending).count;
  stats.receivers_on_their_way = on_their_way(End::kReceiving).count;
  return stats;
}

void Channel::wake_all() noexcept {
  notify_all(header().items);
  notify_all(header().space);
  notify_all(header().freed_bytes);
  notify_all(header().acked);
  if (can_put()) wake_watchers(End::kSending);
  if (ready()) wake_watchers(End::kReceiving);  // who is told of nothing may wait for it
}

Incoming& Incoming::operator=(Incoming&& other) noexcept {
  if (this == &other) return *this;
  drop();
  arena_ = std::exchange(other.arena_, nullptr);
  ticket_ = other.ticket_;
  bytes_ = other.bytes_;
  block_ = other.block_;
  sender_ = other.sender_;
  receiver_ = other.receiver_;
  attempts_ = other.attempts_;
  data_ = other.data_;
  if (other.data_ == other.inline_data_) {
    std::memcpy(inline_data_, other.inline_data_, bytes_);
    data_ = inline_data_;
  }
  return *this;
}

std::span<const std::byte> Incoming::frame() const noexcept {
  return {data_, data_ == nullptr ? 0 : static_cast<std::size_t>(bytes_)};
}

Result<Lease> Incoming::adopt() {
  if (arena_ == nullptr) return Error{Code::kInvalid, "this message holds no block"};
  return arena_->share_hold(block_);
}

void Incoming::drop() noexcept {
  if (const std::shared_ptr<Arena> arena = std::exchange(arena_, nullptr)) arena->holders().drop(block_);
}

}  // namespace shmtree::channel
