// What the handles of a Broadcast and of its subscribers stand for. Thread safety: that of the handles.
#pragma once

#include <memory>
#include <utility>

#include "api/published.h"
#include "broadcast/subscriber.h"
#include "shmtree/broadcast.h"

namespace shmtree::api {

struct BroadcastState : Closable<broadcast::Source> {
  using Closable::Closable;

  static Broadcast wrap(std::shared_ptr<broadcast::Ring> ring, std::shared_ptr<endpoint::Name> name) {
    const auto arena = ring->arena();
    auto source = std::make_shared<broadcast::Source>(std::move(ring));
    return Broadcast(std::make_shared<BroadcastState>(std::move(source), arena, std::move(name)));
  }
  static Result<Broadcast> open(Result<Found> found) {
    if (!found) return std::move(found).error();
    auto ring = broadcast::Ring::open(found->arena, found->block, platform::WaitContext{});
    if (!ring) return std::move(ring).error();
    found->note_arrival();
    return wrap(std::move(*ring), std::move(found->name));
  }
};

struct SubscriberState : Closable<broadcast::Subscriber>, Deferred {
  using Closable::Closable;

  static Subscriber wrap(std::unique_ptr<broadcast::Subscriber> made, std::shared_ptr<endpoint::Name> name) {
    const auto arena = made->ring()->arena();
    return Subscriber(std::make_shared<SubscriberState>(std::move(made), arena, std::move(name)));
  }
  static Result<Subscriber> open(Result<Found> found) {
    if (!found) return std::move(found).error();
    auto made = broadcast::Subscriber::open(found->arena, found->block, platform::WaitContext{});
    if (!made) return std::move(made).error();
    found->note_arrival();
    return wrap(std::move(*made), std::move(found->name));
  }
};

}  // namespace shmtree::api
