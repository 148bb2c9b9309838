// Publishes a message (endpoint/put.h) to many readers: as a version of a Latest, or as a message of a Broadcast.
//
// Thread safety: none for a message; any thread may use a Store or a Publisher.
#pragma once

#include <utility>

#include "broadcast/publisher.h"
#include "endpoint/put.h"
#include "latest/store.h"

namespace shmtree::endpoint {

// Writes the message to a new block. Fails with not_ours() in a child that was forked since.
template <class Message>
Result<memory::OwnedBlock> stage_ours(Message& message, memory::Arena& arena, const platform::WaitContext& wait) {
  auto block = stage_published(message, arena, wait);
  if (block && !message.is_ours()) return not_ours();
  return block;
}

// Returns the version. Errors: those of stage_ours() and Store::publish(); after an error nothing was published.
template <class Message>
Result<std::uint64_t> publish(latest::Store& store, Message&& message, const platform::WaitContext& wait) {
  auto block = stage_ours(message, *store.arena(), wait);
  if (!block) return std::move(block).error();
  auto version = store.publish(std::move(*block), message.bytes(), wait);
  if (version) message.settle();
  return version;
}

// Returns the ticket. Errors: those of stage_ours() and Ring::put(); after an error nothing was put.
template <class Message>
Result<std::uint64_t> put(broadcast::Publisher& publisher, Message&& message, const platform::WaitContext& wait) {
  broadcast::Outgoing outgoing;
  alignas(64) std::byte small[broadcast::kInlineBytes];
  outgoing.bytes = message.bytes();
  if (fits_inline(message, sizeof small)) {
    message.write(small);
    outgoing.frame = {small, static_cast<std::size_t>(message.bytes())};
  } else {
    auto block = stage_ours(message, *publisher.ring()->arena(), wait);
    if (!block) return std::move(block).error();
    outgoing.block = std::move(*block);
  }
  auto ticket = publisher.put(outgoing, wait);
  if (ticket) message.settle();
  return ticket;
}

}  // namespace shmtree::endpoint
