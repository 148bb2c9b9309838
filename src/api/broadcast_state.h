// State behind the handles Broadcast and Subscriber. Thread safety: any call from any thread, like the handles.
#pragma once

#include <memory>
#include <utility>

#include "api/published.h"
#include "broadcast/subscriber.h"
#include "shmtree/broadcast.h"

namespace shmtree::api {

struct BroadcastState : PublishedState<broadcast::Publisher>, Openable<BroadcastState, broadcast::Ring, Broadcast> {
  using PublishedState::PublishedState;

  static Broadcast wrap(std::shared_ptr<broadcast::Ring> ring, std::shared_ptr<endpoint::Name> name) {
    const auto arena = ring->arena();
    auto publisher = std::make_shared<broadcast::Publisher>(std::move(ring));
    return Broadcast(std::make_shared<BroadcastState>(std::move(publisher), arena, std::move(name)));
  }
};

struct SubscriberState : PublishedState<broadcast::Subscriber>,
                         Openable<SubscriberState, broadcast::Subscriber, Subscriber>,
                         Deferred {
  using PublishedState::PublishedState;

  static Subscriber wrap(std::unique_ptr<broadcast::Subscriber> made, std::shared_ptr<endpoint::Name> name) {
    const auto arena = made->ring()->arena();
    return Subscriber(std::make_shared<SubscriberState>(std::move(made), arena, std::move(name)));
  }
};

}  // namespace shmtree::api
