// State behind Service, which Client::open() also uses.
#pragma once

#include <memory>
#include <utility>

#include "api/state.h"
#include "platform/wait_policy.h"
#include "service/clients.h"
#include "shmtree/service.h"

namespace shmtree {

namespace api {

// The reply channel of a client, as a server has it.
struct ReplySender {
  explicit ReplySender(std::shared_ptr<ChannelState> of)
      : state(std::move(of)), sender(ChannelState::handle_to<Sender>(state)) {}
  Status check_receivers() const {
    memory::poll_for_deaths(*state->channel().arena(), platform::wait_policy::kLongPollIntervalNs);
    return state->channel().sending().check_receivers();
  }
  std::shared_ptr<ChannelState> state;
  Sender sender;
};

// Returns the value of a message with a header.
inline Value with_header(std::vector<Value> header, Value value) {
  std::vector<Value> parts;
  parts.reserve(2);
  parts.emplace_back(Tuple(std::move(header)));
  parts.push_back(std::move(value));
  return Tuple(std::move(parts));
}

}  // namespace api

struct Service::State {
  State(std::shared_ptr<api::ChannelState> sender, std::shared_ptr<api::ChannelState> receiver)
      : sending(std::move(sender)), receiving(std::move(receiver)) {}
  const std::shared_ptr<api::ChannelState> sending, receiving;
  service::Clients<api::ReplySender> clients{};
};

}  // namespace shmtree
