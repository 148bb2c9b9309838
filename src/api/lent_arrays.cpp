#include "api/lent_arrays.h"

#include <algorithm>
#include <bit>

#include "endpoint/copy_policy.h"
#include "endpoint/put.h"
#include "platform/never_destroyed.h"
#include "value/encoder.h"

namespace shmtree::api {

using endpoint::ByteRange;
using endpoint::Lending;
using memory::BlockRef;
using value::ArrayMemory;
using value::LentRange;

namespace {

struct OfReceived {
  platform::ForkSafeMutex mutex;
};

// The block that contains [begin, begin + bytes): the block of a message, or a block to which the message refers.
struct Location {
  BlockRef block{};
  std::uint64_t block_bytes = 0;
  std::int64_t at = -1;
};

bool lies_in(const std::byte* block, std::uint64_t block_bytes, const std::byte* begin, std::uint64_t bytes) noexcept {
  const auto at = std::bit_cast<std::uintptr_t>(begin) - std::bit_cast<std::uintptr_t>(block);
  return block != nullptr && at <= block_bytes && bytes <= block_bytes - at;
}

Location location_of(const Received& received, const std::byte* begin, std::uint64_t bytes) {
  const memory::Lease& lease = received.lease;
  if (lies_in(lease.data(), lease.bytes(), begin, bytes)) return {lease.ref(), lease.bytes(), begin - lease.data()};
  memory::Arena& arena = *lease.arena();
  const auto referred = arena.blocks().referred_to_by(lease.ref());
  const auto blocks = endpoint::referred_blocks(arena, referred);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (lies_in(blocks[i].data(), blocks[i].size(), begin, bytes)) {
      return {referred[i], blocks[i].size(), begin - blocks[i].data()};
    }
  }
  return {};
}

}  // namespace

platform::ForkSafeMutex& received_mutex() noexcept {
  return platform::never_destroyed<OfReceived>().mutex;
}

std::uint32_t LentArrays::reference_to(BlockRef block) {
  const auto found = std::find(blocks_.begin(), blocks_.end(), block);
  const auto index = static_cast<std::uint32_t>(found - blocks_.begin());
  if (found == blocks_.end()) blocks_.push_back(block);
  return index;
}

std::optional<LentRange> LentArrays::lend(const ArrayMemory& memory) {
  if (memory.origin != nullptr) return lend_received(memory);
  if (flat_origin_ == nullptr) return lend_own(memory);
  if (flat_origin_->home == nullptr || !flat_origin_->to_give) return std::nullopt;
  return lend_received({.begin = memory.begin, .bytes = memory.bytes, .origin = flat_origin_, .writable = true});
}

std::optional<LentRange> LentArrays::lend_own(const ArrayMemory& memory) {
  std::shared_ptr<Loan> loan = arena_.loan_at(memory.begin, memory.bytes);
  if (loan == nullptr) return std::nullopt;
  const bool is_lent = std::find(loans_.begin(), loans_.end(), loan) != loans_.end();
  if (!is_lent) {
    loans_.reserve(loans_.size() + 1);  // The steps that can fail come before the promise.
    blocks_.reserve(blocks_.size() + 1);
    if (!arena_.lend(*loan, this)) return std::nullopt;
  }
  const LentRange lent{.range = {reference_to(loan->lease.ref()), 0, loan->lease.bytes()}};
  if (!is_lent) loans_.push_back(std::move(loan));
  return lent;
}

std::optional<LentRange> LentArrays::lend_received(const ArrayMemory& memory) {
  const value::Origin& origin = *memory.origin;
  const bool writable = memory.writable;
  auto& received = *static_cast<Received*>(const_cast<void*>(origin.home));
  if (received.lease.arena() != arena_.arena) return std::nullopt;
  const bool must_stay = received.may_be_nacked.load(std::memory_order_acquire) || received.lease.is_inherited();
  if (writable && must_stay) return std::nullopt;
  const Lending lending = origin.to_give ? Lending::kMove : Lending::kOwn;
  if (!endpoint::is_lent(lending, {.received = true, .writable = writable, .frozen = origin.to_show}))
    return std::nullopt;
  const Location location = location_of(received, memory.begin, memory.bytes);
  if (location.at < 0) return std::nullopt;
  received_.reserve(received_.size() + 1);
  blocks_.reserve(blocks_.size() + 1);
  {
    // Claims refer to addresses and not to blocks, since a message may have arrays in several blocks.
    const auto first = std::bit_cast<std::uintptr_t>(memory.begin);
    const ByteRange addresses{first, first + memory.bytes};
    const std::lock_guard guard(received_mutex());
    endpoint::Claims& claims = received.claims;
    if (!claims.are_ours() || !claims.are_free(addresses, this, writable)) return std::nullopt;
    claims.promise(addresses, this, writable);
  }
  if (std::find(received_.begin(), received_.end(), &received) == received_.end()) received_.push_back(&received);
  return LentRange{.range = {reference_to(location.block), 0, location.block_bytes}, .at = location.at};
}

bool LentArrays::is_given(const value::Origin& origin) const noexcept {
  const std::lock_guard guard(received_mutex());
  return static_cast<const Received*>(origin.home)->claims.are_given(this);
}

void LentArrays::end(void (endpoint::Claims::*how)(const void*) noexcept) noexcept {
  if (!loans_.empty()) {
    const std::lock_guard guard(arena_.mutex);
    for (const auto& loan : loans_) (loan->claims.*how)(this);
  }
  if (!received_.empty()) {
    const std::lock_guard guard(received_mutex());
    for (Received* each : received_) (each->claims.*how)(this);
  }
}

}  // namespace shmtree::api

namespace shmtree::value {
template Status encode(const Value&, format::FrameBuilder&, api::LentArrays&);
}  // namespace shmtree::value
