#include "latest/store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "memory/control_block.h"
#include "memory/event.h"
#include "memory/weak_registry.h"
#include "platform/errors.h"
#include "platform/never_destroyed.h"
#include "platform/other_version.h"
#include "platform/wait_policy.h"

namespace shmtree::latest {

using namespace platform;
using memory::BlockKind;
using memory::Lease;
using memory::ListEntry;

namespace {

constexpr std::uint64_t list_offset(std::uint64_t entries) noexcept {
  return sizeof(LatestHeader) + entries * sizeof(WindowEntry);
}
constexpr std::uint64_t control_bytes(std::uint64_t entries) noexcept {
  return list_offset(entries) + entries * sizeof(ListEntry);
}

memory::WeakRegistry<Store>& stores() noexcept {
  return never_destroyed<memory::WeakRegistry<Store>>();
}

Error damaged() {
  return Error{.code = Code::kCorrupt, .message = "the words of this Latest in shared memory are damaged"};
}

}  // namespace

Store::Store(std::shared_ptr<Arena> arena, Lease control, std::uint64_t entries)
    : arena_(std::move(arena)),
      control_(std::move(control)),
      entries_(entries),
      window_(reinterpret_cast<WindowEntry*>(control_.data() + sizeof(LatestHeader))),
      list_(reinterpret_cast<ListEntry*>(control_.data() + list_offset(entries))) {}

Status Store::check_options(const Options& options) const {
  OptionDifferences others;
  others.compare("history", history(), options.history);
  others.compare_flags("allow_pickle", allows_pickle(), options.allow_pickle);
  return others.of("a Latest");
}

Store::~Store() {
  leave();
  stores().erase(this);
}

std::shared_ptr<Store> Store::known(std::shared_ptr<Store> made) {
  return stores().insert(
      made, [&](const Store& other) { return other.arena() == made->arena() && other.block() == made->block(); });
}

Result<std::shared_ptr<Store>> Store::create(std::shared_ptr<Arena> arena, const Options& options,
                                             const WaitContext& wait) try {
  if (options.history > kMostHistory) {
    return Error{.code = Code::kInvalid,
                 .message = "a history of " + std::to_string(options.history) + " versions; the most is " +
                            std::to_string(kMostHistory)};
  }
  const std::uint64_t entries = options.history + 2;
  auto block = make_control_block(*arena, BlockKind::kLatest, control_bytes(entries), wait);
  if (!block) return std::move(block).error();
  auto* header = new (block->data()) LatestHeader{};
  header->magic = kLatestMagic;
  header->version = kLatestVersion;
  header->entries = static_cast<std::uint32_t>(entries);
  header->history = options.history;
  if (options.allow_pickle) header->flags = kPickles;
  // As long as it will ever be, and empty: an entry of zeros names no block.
  const std::vector<BlockRef> nothing(entries);
  auto control = hold_control_block(*arena, std::move(*block), nothing, wait);
  if (!control) return std::move(control).error();
  return known(std::shared_ptr<Store>(new Store(std::move(arena), std::move(*control), entries)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::shared_ptr<Store>> Store::open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                           const WaitContext& wait) try {
  auto control = open_control_block(*arena, block, BlockKind::kLatest, sizeof(LatestHeader), "a Latest", wait);
  if (!control) return std::move(control).error();
  const auto& header = *reinterpret_cast<const LatestHeader*>(control->data());
  const bool is_latest = load_once(header.magic) == kLatestMagic;
  const std::uint32_t version = load_once(header.version);
  if (is_latest && version != kLatestVersion) {
    return platform::other_version("the Latest has layout version", version, kLatestVersion);
  }
  const std::uint64_t entries = load_once(header.entries);
  if (!is_latest || entries < 2 || entries > kMostHistory + 2 ||
      control_bytes(entries) > arena->blocks().room_of(block.id)) {
    return Error{.code = Code::kIncompatible, .message = "not a Latest"};
  }
  return known(std::shared_ptr<Store>(new Store(arena, std::move(*control), entries)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// --- Publishing

void Store::enter(std::uint64_t version, BlockRef block, std::uint64_t bytes) noexcept {
  const std::uint64_t place = place_of(version);
  references().fill(place, block);
  WindowEntry& entry = window_[place];
  store_relaxed(entry.block, memory::pack(block));
  store_relaxed(entry.bytes, bytes);
  store_release(entry.version, version);
}

// The block that the entry kept, which nothing may keep any more: an invalid reference when there is none.
BlockRef Store::remove(std::uint64_t place) noexcept {
  store_release(window_[place].version, std::uint64_t{0});  // who sees it gone sees `latest` as it was before
  fence_seq_cst();                                          // readers see the version gone, or we see their bits
  return references().empty(place);
}

// The last one to publish died in the middle of it.
void Store::repair() noexcept {
  const std::uint64_t newest = load_relaxed(header().latest);
  for (std::uint64_t place = 0; place < entries_; ++place) {
    const std::uint64_t version = load_relaxed(window_[place].version);
    if (is_in_window(version, newest) && place_of(version) == place) continue;
    const BlockRef block = remove(place);
    if (block.id.value != 0) arena_->reclaimer().free_if_unreferenced(block);
  }
  store_relaxed(header().publishing, std::uint64_t{0});
}

Result<std::uint64_t> Store::publish(memory::OwnedBlock block, std::uint64_t bytes, const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  auto held = arena_->hold_new(std::move(block));
  if (!held) return std::move(held).error();
  if (publishing().enter(*me)) has_published_.store(true, std::memory_order_relaxed);
  Status locked = arena_->reconciler().lock_arena(wait);
  if (!locked) return std::move(locked).error();
  LatestHeader& shared = header();
  if (load_relaxed(shared.publishing) != 0) repair();
  const std::uint64_t version = load_relaxed(shared.latest) + 1;
  store_release(shared.publishing, version);
  enter(version, held->ref(), bytes);
  store_release(shared.latest, version);
  const BlockRef left = remove(place_of(version + 1));
  store_release(shared.publishing, std::uint64_t{0});
  arena_->reclaimer().unlock();
  if (left.id.value != 0) arena_->reclaimer().collect(left);
  notify_all(shared.changed);
  return version;
}

void Store::leave() noexcept {
  if (has_published_.load(std::memory_order_relaxed) && publishing().leave()) wake();
}

void Store::wake() noexcept {
  notify_all(header().changed);
}

void Store::leave_all() noexcept {
  for (const auto& store : stores().all()) store->leave();
}

// --- Reading

// kNotFound when the version is not there, or goes.
Result<Held> Store::try_hold(std::uint64_t version) const {
  const auto moved = [] { return Error{.code = Code::kNotFound, .message = "the version is not there any more"}; };
  const WindowEntry& entry = window_[place_of(version)];
  if (load_acquire(entry.version) != version) return moved();
  const BlockRef block = memory::unpack(load_relaxed(entry.block));
  const std::uint64_t bytes = load_relaxed(entry.bytes);
  fence_acquire();  // what was read is that version's, if it still is the entry's
  if (load_relaxed(entry.version) != version || !arena_->blocks().is_current(block)) return moved();
  auto held = arena_->hold_while(block, entry.version, version);
  if (!held) return std::move(held).error();
  const memory::BlockEntry* known = arena_->blocks().entry(block.id);
  const bool fits = memory::is_kind(*known, BlockKind::kPublished) && bytes <= held->bytes() &&
                    bytes <= arena_->blocks().room_of(block.id) && arena_->blocks().is_current(block);
  if (!fits) return damaged();
  return Held{version, std::move(*held), bytes};
}

// Each time that a version goes while it is being read, a newer one has come.
Result<Held> Store::newest(std::uint64_t known) const {
  for (;;) {
    const std::uint64_t version = this->version();
    if (version <= known) return Error{.code = Code::kEmpty, .message = "there is no newer version"};
    auto held = try_hold(version);
    if (held || held.code() != Code::kNotFound) return held;
    fence_acquire();  // what showed that it went was stored after the newer one
    if (this->version() == version) return damaged();
  }
}

Result<Held> Store::at(std::uint64_t version) const {
  const std::uint64_t newest = this->version();
  if (is_in_window(version, newest)) {
    auto held = try_hold(version);
    if (held || held.code() != Code::kNotFound) return held;
  }
  return Error{.code = Code::kNotFound,
               .message = "version " + std::to_string(version) + " is not there: the newest is " +
                          std::to_string(this->version()) + ", with a history of " + std::to_string(history())};
}

Status Store::wait_for_newer(std::uint64_t known, const WaitContext& wait) const {
  const memory::SleepReason reason{arena_->participants(), memory::WaitFor::kNewer, memory::pack(block())};
  memory::EventWait waiting(header().changed, reason, wait);
  for (bool looked = false;; looked = true) {
    if (looked) waiting.arm();
    if (version() > known) return success();
    if (looked || wait.deadline.is_immediate()) {
      Status attended = check_publishers();
      // What the last of them published came before they went.
      if (version() > known) return success();
      if (!attended) return attended;
    }
    if (!looked && !wait.deadline.is_immediate()) continue;
    if (looked && arena_->participants().check(wait_policy::alive_within_ns(true))) {
      Status repaired = arena_->reconcile(wait);
      if (!repaired) return repaired;
    }
    switch (waiting.sleep()) {
      case memory::EventWait::Wake::kLookAgain: break;
      case memory::EventWait::Wake::kInterrupted:
        return Error{.code = Code::kInterrupted, .message = "interrupted while waiting for a newer version"};
      case memory::EventWait::Wake::kTimedOut:
        if (version() > known) return success();
        return Error{.code = Code::kEmpty,
                     .message = "no version newer than " + std::to_string(known) + " was published in time"};
    }
  }
}

// --- Looking in

Store::Kept Store::kept() const noexcept {
  Kept kept;
  for (std::uint64_t place = 0; place < entries_; ++place) {
    if (load_acquire(window_[place].version) == 0) continue;
    ++kept.versions;
    kept.bytes += load_relaxed(window_[place].bytes);
  }
  return kept;
}

std::string Store::check() const {
  const std::uint64_t newest = version();
  if (load_relaxed(header().publishing) != 0) return "a publication was cut off";
  for (std::uint64_t place = 0; place < entries_; ++place) {
    const std::uint64_t version = load_relaxed(window_[place].version);
    const BlockRef listed = references().at(place);
    if (version == 0) {
      if (listed.id.value != 0) return "the list keeps a block of no version";
      continue;
    }
    if (!is_in_window(version, newest) || place_of(version) != place) return "a version is in another's place";
    if (memory::pack(listed) != load_relaxed(window_[place].block)) return "the list keeps another block";
    if (!arena_->blocks().is_current(listed)) return "a version's block is free";
  }
  for (std::uint64_t version = newest; is_in_window(version, newest); --version) {
    if (load_relaxed(window_[place_of(version)].version) != version) return "a version of the history is missing";
  }
  return "";
}

}  // namespace shmtree::latest
