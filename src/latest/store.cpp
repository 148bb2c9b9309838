#include "latest/store.h"

#include <new>
#include <utility>

#include "platform/dcheck.h"
#include "platform/errors.h"

namespace shmtree::latest {

using namespace platform;

namespace {

Error damaged() {
  return Error{.code = Code::kCorrupt, .message = "the shared state of this Latest is damaged"};
}

Result<std::shared_ptr<Store>> store_of(Result<std::shared_ptr<Ring>> ring) {
  if (!ring) return std::move(ring).error();
  if ((*ring)->history() == 0)
    return Error{.code = Code::kIncompatible, .message = "this block of the arena is not a Latest"};
  return std::make_shared<Store>(std::move(*ring));
}

}  // namespace

Result<std::shared_ptr<Store>> Store::create(std::shared_ptr<Arena> arena, const Options& options,
                                             const WaitContext& wait) try {
  if (options.history > kMaxHistory) {
    return Error{.code = Code::kInvalid,
                 .message = "history is " + std::to_string(options.history) + " versions; it must be at most " +
                            std::to_string(kMaxHistory)};
  }
  const broadcast::Options kept{.capacity = 1, .history = options.history + 1, .allow_pickle = options.allow_pickle};
  return store_of(Ring::create(std::move(arena), kept, wait, broadcast::kLatestUse));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::shared_ptr<Store>> Store::open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                           const WaitContext& wait) try {
  return store_of(Ring::open(arena, block, wait, broadcast::kLatestUse));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Store::check_options(const Options& options) const {
  OptionDifferences others;
  others.compare("history", history(), options.history);
  others.compare_flags("allow_pickle", allows_pickle(), options.allow_pickle);
  return others.of("a Latest");
}

Result<std::uint64_t> Store::publish(memory::OwnedBlock block, std::uint64_t bytes, const WaitContext& wait) {
  broadcast::Outgoing outgoing{.block = std::move(block), .bytes = bytes};
  auto ticket = publisher_.put(outgoing, wait);
  if (ticket) *ticket += 1;
  return ticket;
}

// kNotFound if the version is overwritten before it is pinned.
Result<Held> Store::try_hold(std::uint64_t version) const {
  SHMTREE_DCHECK(version != 0);
  std::uint64_t bytes = 0;
  auto block = ring()->read_block(version - 1, &bytes);
  if (block) return Held{version, std::move(*block), bytes};
  return block.code() == Code::kCorrupt ? damaged() : std::move(block).error();
}

// Starts over if the version was overwritten while it was being read: then there is a newer one.
Result<Held> Store::newest(std::uint64_t known) const {
  for (;;) {
    const std::uint64_t version = this->version();
    if (version <= known) return Error{.code = Code::kEmpty, .message = "there is no newer version"};
    auto held = try_hold(version);
    if (held || held.code() != Code::kNotFound) return held;
    fence_acquire();  // the overwrite was visible, so the newer version is, too
    if (this->version() == version) return damaged();
  }
}

Result<Held> Store::at(std::uint64_t version) const {
  const std::uint64_t newest = this->version();
  if (version != 0 && version <= newest && newest - version <= history()) {
    auto held = try_hold(version);
    if (held || held.code() != Code::kNotFound) return held;
  }
  return Error{.code = Code::kNotFound,
               .message = "version " + std::to_string(version) + " is not available: the newest is " +
                          std::to_string(this->version()) + ", with a history of " + std::to_string(history())};
}

Status Store::wait_for_newer(std::uint64_t known, const WaitContext& wait) const {
  const auto is_newer = [&] { return version() > known; };
  const auto look = [&] { return is_newer() ? success() : Status(Code::kEmpty); };
  Status newer = ring()->wait_for_item(memory::WaitFor::kNewer, "a newer version", wait, look, is_newer);
  if (newer || newer.code() != Code::kEmpty) return newer;
  return Error{.code = Code::kEmpty,
               .message = "no version newer than " + std::to_string(known) + " was published within the timeout"};
}

Result<bool> Store::await_newer(std::uint64_t known, WakeAddress hub) {
  Status asked = ring()->await(hub);
  if (!asked) return std::move(asked).error();
  return is_newer(known);
}

Store::Retained Store::retained() const noexcept {
  const std::uint64_t end = ring()->tail();
  Retained all;
  for (std::uint64_t ticket = ring()->oldest(); ticket < end; ++ticket) {
    ++all.versions;
    all.bytes += ring()->frame_bytes(ticket);
  }
  return all;
}

}  // namespace shmtree::latest
