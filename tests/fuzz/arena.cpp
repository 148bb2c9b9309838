// Coverage-guided search for words in shared memory that crash processes of the arena.
//
// Creates and copies one arena with a channel, messages, a delivery record, lists of references, and a live and a dead
// participant. Each input overwrites words of the arena and runs operations; then the copy is restored.
//
//   offset 0  2  operations to run, one bit each; 0: all
//          2     the words: region (1), number of the word (2), value (8), up to kMaxWords times
//
// Regions kTapNotes and kTapTimes are the notes of a tap, of messages or of times. The tap is opened before words
// change.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "channel/channel.h"
#include "cost.h"
#include "endpoint/copy_policy.h"
#include "endpoint/put.h"
#include "platform/atomics.h"

using namespace shmtree;
using channel::Channel;
using channel::End;
using channel::Incoming;
using channel::Tap;
using memory::Arena;
using memory::BlockId;
using memory::BlockKind;
using memory::BlockRef;
using memory::Lease;
using platform::Deadline;
using platform::WaitContext;

namespace {

constexpr std::uint64_t kBudget = 4u << 20;
constexpr std::uint64_t kEntries = 16;  // of each class, to restore
constexpr std::uint32_t kParticipants = 6;
constexpr int kRunsPerArena = 2000;  // then a new arena follows, since restore() does not undo all changes
constexpr std::size_t kMaxWords = 24;
constexpr std::size_t kNotesBytes = 32 << 10;  // of a tap's notes, to damage
constexpr std::uint8_t kTapNotes = 255, kTapTimes = 254;

// Aborts if a condition is false that must hold despite any damage.
void expect(bool holds) {
  if (!holds) std::abort();
}

WaitContext no_wait() {
  return WaitContext{Deadline::immediate()};
}

struct Region {
  std::byte* begin;
  std::size_t bytes;
  std::vector<std::byte> copy;

  Region(void* at, std::size_t size) : begin(static_cast<std::byte*>(at)), bytes(size), copy(begin, begin + size) {}
  void restore() const { std::memcpy(begin, copy.data(), bytes); }
};

class Scene {
 public:
  Scene() {
    memory::ArenaOptions options;
    options.max_bytes = kBudget;
    arena_ = Arena::create(options).value();
    {
      channel::ChannelOptions made;
      made.capacity = 0;
      made.max_attempts = 3;
      auto channel = Channel::create(arena_, made).value();
      keeps_channel_ = arena_->hold_existing(channel->block(), BlockKind::kChannel, no_wait()).value();
      channel->membership().join(End::kSending).value();
      channel->membership().join(End::kReceiving).value();
      array_ = arena_->hold_new(arena_->allocate(9000, BlockKind::kArray, no_wait()).value()).value();
      for (int i = 0; i < 12; ++i) expect(put(*channel, i % 3 == 2));
      channel->take(no_wait()).value().nack(no_wait()).value();
      channel->membership().begin_transfer(End::kSending).value();
    }
    living_ = arena_->reconciler().reserve_slot().value();
    static_cast<void>(arena_->reconciler().reserve_slot().value());  // closed at once, to imitate a killed process
    arena_->allocate(100'000, BlockKind::kMessage, no_wait()).value().abandon();
    note_regions();
  }
  ~Scene() { restore(); }

  Arena& arena() { return *arena_; }

  void damage(unsigned region, std::size_t word, std::uint64_t value) {
    if (tap_ != nullptr && region >= kTapTimes) return damage(notes_, word, value);
    const Region& where = regions_[region % regions_.size()];
    damage({where.begin, where.bytes}, word, value);
  }
  // Opens a tap, puts messages in slots and in blocks, and receives one. Call it while no word is damaged.
  void open_tap(Tap::Wants wants) {
    tapped_ = Channel::open(arena_, keeps_channel_.ref(), no_wait()).value();
    for (const End end : {End::kSending, End::kReceiving}) tapped_->membership().join(end).value();
    tap_ = tapped_->tap(wants, no_wait()).value();
    for (int i = 0; i < 6; ++i) expect(put(*tapped_, i % 2 == 1));
    look(get(*tapped_));
    const auto& words = *reinterpret_cast<channel::ChannelHeader*>(keeps_channel_.data());
    const BlockId id = memory::unpack(words.tap).id;
    const std::size_t bytes = std::min(kNotesBytes, std::size_t{1} << id.size_class());
    notes_ = {arena_->blocks().address(id), bytes};
  }
  void use_tap() {
    if (tap_ == nullptr) return;
    for (int i = 0; i < 4; ++i) {
      for (const Tap::Seen& seen : tap_->take(3)) {
        if (seen.block.id.value != 0) {
          within(seen.block.id, seen.frame);
        } else {
          expect(seen.frame.size() <= channel::kMaxInlineBytes);
          read(seen.frame);
        }
      }
      for (const Tap::Times& times : tap_->take_times(3, i % 2 == 0)) sum_ = sum_ + times.got_pid;
      tap_->release();
    }
  }
  void close_tap() {
    if (tap_ != nullptr) tap_->is_over(no_wait());
    tap_.reset();
    tapped_.reset();
  }
  // Frees each lock if its word, which may be damaged, names a live process. A call would wait for it, which is correct
  // behaviour and not a finding.
  void free_locks() {
    auto& words = *reinterpret_cast<channel::ChannelHeader*>(keeps_channel_.data());
    auto& header = arena_->header();
    for (auto* lock : {&words.senders_lock, &words.receivers_lock, &header.arena_lock, &header.reconcile_lock}) {
      if (arena_->participants().is_alive(*lock & ~(memory::kHeld | memory::kContended))) *lock = 0;
    }
  }
  void restore() {
    for (const Region& region : regions_) region.restore();
  }

  void use(unsigned what) {
    const auto wanted = [what](unsigned bit) { return what == 0 || (what >> bit & 1) != 0; };
    auto opened = Channel::open(arena_, keeps_channel_.ref(), no_wait());
    if (opened) {
      Channel& channel = **opened;
      channel.membership().join(End::kSending).ok();
      channel.membership().join(End::kReceiving).ok();
      if (wanted(0)) put(channel, false);
      if (wanted(1)) put(channel, true);
      if (wanted(2)) look(get(channel));
      if (wanted(3)) take(channel);
      if (wanted(4)) ask(channel);
      if (wanted(5)) queue(channel);
      if (wanted(6)) ends(channel);
      if (wanted(7)) many(channel);
      if (wanted(8)) shut_down(channel);
    }
    if (wanted(9)) attach();
    if (wanted(10)) blocks();
    if (wanted(11)) arena_->allocator().trim();
    if (wanted(12)) inspect();
    if (wanted(13)) {
      memory::request_recovery(arena_->header());
      arena_->reconcile(no_wait()).ok();
    }
    if (wanted(14)) {
      arena_->participants().check(0);
      static_cast<void>(arena_->reconciler().reserve_slot().ok());
    }
    if (opened && wanted(15)) {
      look(get(**opened));
      put(**opened, true);
    }
  }

 private:
  static void damage(std::span<std::byte> where, std::size_t word, std::uint64_t value) {
    std::memcpy(where.data() + word % (where.size() / 8) * 8, &value, 8);
  }
  void note_regions() {
    auto& header = arena_->header();
    const auto& words = *reinterpret_cast<channel::ChannelHeader*>(keeps_channel_.data());
    regions_.emplace_back(&header, memory::kHeaderBytes);
    regions_.emplace_back(keeps_channel_.data(), memory::kPageBytes);
    for (const auto* segment : {&words.head_segment, &words.tail_segment, &words.records}) {
      const BlockId id = memory::unpack(*segment).id;
      regions_.emplace_back(arena_->blocks().address(id), std::size_t{1} << id.size_class());
    }
    for (std::uint64_t index = 0; index < 4; ++index) {  // blocks of the messages, with their lists
      regions_.emplace_back(arena_->blocks().address(BlockId::make(13, index)), 8192u);
    }
    for (unsigned k = memory::kMinClass; k <= arena_->blocks().geometry().max_class(); ++k) {
      const std::uint64_t count = std::min(kEntries, arena_->blocks().geometry().count(k));
      regions_.emplace_back(arena_->blocks().entry(BlockId::make(k, 0)), count * sizeof(memory::BlockEntry));
    }
    regions_.emplace_back(&arena_->participants().slot(0), kParticipants * sizeof(memory::Participant));
  }

  Result<Incoming> get(Channel& channel) {
    Incoming message;
    Status got = channel.receiving().get(message, no_wait());
    if (!got) return std::move(got).error();
    return message;
  }
  // Puts an inline frame of 100 bytes, or a frame of 600 bytes in a block that refers to the array.
  bool put(Channel& channel, bool in_block) {
    channel::Outgoing message;
    std::byte frame[100]{};
    message.inline_frame = frame;
    if (in_block) {
      auto block = arena_->allocate(6000, BlockKind::kMessage, no_wait());
      if (!block) return false;
      std::memset(block->data(), 1, 6000);
      const BlockRef list[] = {array_.ref()};
      if (!arena_->holders().refer(*block, list, no_wait()).ok()) return false;
      message.block = std::move(*block);
      message.bytes = 600;
    }
    return channel.sending().put(message, no_wait()).ok();
  }

  void look(Result<channel::Incoming> message) {
    if (message) look(*message);
  }
  // Checks that the received frame is inside its block.
  void look(channel::Incoming& message) {
    const auto frame = message.frame();
    if (!message.in_block()) {
      expect(frame.size() <= channel::kMaxInlineBytes);
      return;
    }
    within(message.block().id, frame);
    const auto referred = arena_->blocks().referred_to_by(message.block());
    const auto blocks = endpoint::referred_blocks(*arena_, referred);
    for (const auto& block : blocks) read(block);
    endpoint::copy_policy(endpoint::CopyPolicy::kAuto, *arena_, message, referred, blocks);
    auto lease = message.adopt();
    if (lease) within(lease->ref().id, {lease->data(), lease->bytes()});
  }
  void within(BlockId id, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    expect(bytes.data() == arena_->blocks().address(id) && bytes.size() <= std::uint64_t{1} << id.size_class());
    read(bytes);
  }
  void read(std::span<const std::byte> bytes) {
    expect(bytes.size() <= 2 * kBudget);
    for (std::size_t at = 0; at < bytes.size(); at += memory::kPageBytes) sum_ = sum_ + static_cast<int>(bytes[at]);
    if (!bytes.empty()) sum_ = sum_ + static_cast<int>(bytes.back());
  }

  void take(Channel& channel) {
    auto first = channel.take(no_wait());
    auto second = channel.take(no_wait());
    auto third = channel.take(no_wait());
    if (first) look(first->message());
    if (first) first->ack(no_wait()).ok();
    if (second) second->nack(no_wait()).ok();
    auto dead_letters = channel.dead_letters(no_wait());
    if (!dead_letters) return;
    for (channel::Delivery& delivery : *dead_letters) look(delivery.message());
    if (!dead_letters->empty()) dead_letters->front().requeue(no_wait()).ok();
  }
  void ask(Channel& channel) {
    channel.size();
    channel.sending().has_space();
    channel.watchers().can_put();
    channel.ready();
    channel.ends().is_over(End::kSending);
    channel.stats();
    channel.acks().pending();
    channel.acks().wait({}, no_wait()).ok();
    channel.acks().wait(0, no_wait()).ok();
    channel.sending().wait_for_space(5000, no_wait()).ok();
  }
  void queue(Channel& channel) {
    channel.tasks().done().ok();
    channel.tasks().join(no_wait()).ok();
    channel.tasks().unfinished();
    if (channel.tasks().reserve(End::kReceiving, no_wait())) channel.tasks().release(End::kReceiving);
    if (channel.tasks().reserve(End::kSending, no_wait())) channel.tasks().release(End::kSending);
  }
  void ends(Channel& channel) {
    auto number = channel.membership().begin_transfer(End::kReceiving);
    channel.membership().give_to(living_.identity, End::kReceiving);
    channel.watchers().wake_all();
    if (number) channel.membership().end_transfer(*number, End::kReceiving);
    channel.membership().leave(End::kSending);
    channel.membership().join(End::kSending).ok();
  }
  void many(Channel& channel) {
    get_several(channel, 5);
    channel::Outgoing out[20];
    const std::byte frame[8]{};
    for (auto& message : out) message.inline_frame = frame;
    channel.sending().put_many(out, no_wait()).ok();
    get_several(channel, 100);
  }
  void get_several(Channel& channel, int most) {
    for (int i = 0; i < most; ++i) {
      auto message = get(channel);
      if (!message) return;
      look(*message);
    }
  }
  void shut_down(Channel& channel) {
    channel.tasks().shut_down(false, no_wait()).ok();
    channel.tasks().shut_down(true, no_wait()).ok();
    get(channel).ok();
  }
  void attach() {
    platform::UniqueFd fd(dup(arena_->fd()));
    auto attached = Arena::attach(std::move(fd));
    if (!attached || *attached == arena_) return;
    (*attached)->inspector().stats();
    Channel::open(*attached, keeps_channel_.ref(), no_wait()).ok();
  }
  void blocks() {
    for (const std::uint64_t bytes : {100u, 5000u, 700'000u}) {
      auto block = arena_->allocate(bytes, BlockKind::kArray, no_wait());
      if (!block) continue;
      block->data()[bytes - 1] = std::byte{1};
      auto lease = arena_->hold_new(std::move(*block));
      if (lease) within(lease->ref().id, {lease->data(), lease->bytes()});
    }
    auto again = arena_->hold_existing(array_.ref(), BlockKind::kArray, no_wait());
    if (again) within(again->ref().id, {again->data(), again->bytes()});
  }
  void inspect() {
    arena_->inspector().stats();
    arena_->inspector().holders();
    arena_->inspector().describe_holders(4);
    arena_->pool().free_bytes();
    arena_->participants().is_alive(living_.identity);
  }

  std::shared_ptr<Arena> arena_;
  Lease keeps_channel_, array_;
  memory::ReservedSlot living_;
  std::vector<Region> regions_;
  std::shared_ptr<Channel> tapped_;
  std::shared_ptr<Tap> tap_;
  std::span<std::byte> notes_;
  volatile int sum_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::unique_ptr<Scene> scene;
  static int runs = 0;
  if (scene == nullptr || ++runs % kRunsPerArena == 0) {
    scene.reset();
    scene = std::make_unique<Scene>();
  }
  if (size < 2) return 0;
  std::uint16_t what = 0;
  std::memcpy(&what, data, sizeof what);
  constexpr std::size_t kWordBytes = 11;
  const std::size_t words = std::min(kMaxWords, (size - sizeof what) / kWordBytes);
  const std::uint8_t* const first = data + sizeof what;
  const auto region_of = [&](std::size_t i) { return first[i * kWordBytes]; };
  const fuzz::Cost cost;
  for (std::size_t i = 0; i < words; ++i) {
    if (region_of(i) < kTapTimes) continue;
    scene->open_tap(region_of(i) == kTapNotes ? Tap::Wants::kMessages : Tap::Wants::kTimes);
    break;
  }
  for (std::size_t i = 0; i < words; ++i) {
    std::uint16_t word = 0;
    std::uint64_t value = 0;
    std::memcpy(&word, first + i * kWordBytes + 1, sizeof word);
    std::memcpy(&value, first + i * kWordBytes + 3, sizeof value);
    scene->damage(region_of(i), word, value);
  }
  scene->free_locks();
  scene->use_tap();
  scene->use(what);
  scene->use_tap();
  scene->close_tap();
  scene->restore();
  return 0;
}
