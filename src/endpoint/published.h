// Publishing, as it is in every language: a value for many readers, as a version of a Latest or a message of a
// Broadcast. Messages are as of endpoint/put.h.
//
// Thread safety: none for a message; what it is published by is anybody's.
#pragma once

#include <utility>

#include "broadcast/source.h"
#include "endpoint/put.h"
#include "latest/store.h"

namespace shmtree::endpoint {

// In a block that this process may give away; see put.h.
template <class Message>
Result<memory::OwnedBlock> stage_ours(Message& message, memory::Arena& arena, const platform::WaitContext& wait) {
  auto block = stage_published(message, arena, wait);
  if (block && !message.is_ours()) return not_ours();
  return block;
}

// The version. Errors as of stage_published() and Store::publish(); nothing was published then.
template <class Message>
Result<std::uint64_t> publish(latest::Store& store, Message&& message, const platform::WaitContext& wait) {
  auto block = stage_ours(message, *store.arena(), wait);
  if (!block) return std::move(block).error();
  auto version = store.publish(std::move(*block), message.bytes(), wait);
  if (version) message.settle();
  return version;
}

// The ticket. Errors as of stage_published() and Ring::put(); nothing was put then.
template <class Message>
Result<std::uint64_t> put(broadcast::Source& source, Message&& message, const platform::WaitContext& wait) {
  broadcast::Outgoing outgoing;
  alignas(64) std::byte small[broadcast::kInlineBytes];
  outgoing.bytes = message.bytes();
  if (message.bytes() <= sizeof small && message.blocks().empty()) {
    message.write(small);
    outgoing.frame = {small, static_cast<std::size_t>(message.bytes())};
  } else {
    auto block = stage_ours(message, *source.ring()->arena(), wait);
    if (!block) return std::move(block).error();
    outgoing.block = std::move(*block);
  }
  auto ticket = source.put(outgoing, wait);
  if (ticket) message.settle();
  return ticket;
}

}  // namespace shmtree::endpoint
