// Broadcasts for tests. All words of a message contain the same number, so that torn messages are detected.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "broadcast/subscriber.h"
#include "support/arenas.h"
#include "support/ring_check.h"

namespace shmtree::test {

using broadcast::Policy;
using broadcast::Ring;
using broadcast::Subscriber;

inline std::shared_ptr<Ring> new_ring(const broadcast::Options& options = {},
                                      const std::shared_ptr<Arena>& arena = new_arena()) {
  return Ring::create(arena, options, patience()).value();
}
inline std::unique_ptr<Subscriber> subscribe(const std::shared_ptr<Ring>& ring, Policy policy = Policy::kBlock,
                                             bool from_oldest = false) {
  return Subscriber::create(ring, policy, from_oldest, patience()).value();
}
inline std::unique_ptr<Subscriber> subscribe_and_claim(const std::shared_ptr<Ring>& ring,
                                                       Policy policy = Policy::kBlock) {
  auto reader = subscribe(ring, policy);
  broadcast::Incoming message;
  if (reader->get(message, no_wait()).code() != Code::kEmpty) std::abort();
  return reader;
}

constexpr std::size_t kSmallWords = 60, kBlockWords = 200;

inline Result<std::uint64_t> put(Ring& ring, std::uint64_t value, std::size_t words = kSmallWords,
                                 const WaitContext& wait = patience()) {
  const std::vector<std::uint64_t> frame(words, value);
  broadcast::Outgoing outgoing;
  if (words * 8 <= broadcast::kInlineBytes) {
    outgoing.frame = std::as_bytes(std::span(frame));
    return ring.put(outgoing, wait);
  }
  auto block = ring.arena()->allocate(words * 8, BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  std::memcpy(block->data(), frame.data(), words * 8);
  outgoing.block = std::move(*block);
  outgoing.bytes = words * 8;
  return ring.put(outgoing, wait);
}

// Returns the number in a message, or nullopt if it is torn.
inline std::optional<std::uint64_t> number_in(const broadcast::Incoming& message) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(message.frame().data());
  for (std::size_t i = 0; i < message.bytes / 8; ++i) {
    if (words[i] != words[0]) return std::nullopt;
  }
  return words[0];
}
// Returns the number in the next message, or nullopt if there is none or it is torn.
inline std::optional<std::uint64_t> next(Subscriber& subscriber, const WaitContext& wait = no_wait()) {
  broadcast::Incoming message;
  auto got = subscriber.get(message, wait);
  if (!got) return std::nullopt;
  return number_in(message);
}
inline std::vector<std::uint64_t> all_of(Subscriber& subscriber) {
  std::vector<std::uint64_t> found;
  while (auto number = next(subscriber)) found.push_back(*number);
  return found;
}

}  // namespace shmtree::test
