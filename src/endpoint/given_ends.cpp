#include "endpoint/given_ends.h"

#include <utility>

namespace shmtree::endpoint {

namespace {

constinit thread_local GivenEnds* t_pickled = nullptr;

}  // namespace

GivenEnds::Pickling::Pickling(GivenEnds* ends) noexcept : before_(std::exchange(t_pickled, ends)) {}
GivenEnds::Pickling::~Pickling() {
  t_pickled = before_;
}

Result<std::uint64_t> GivenEnds::grant(const std::shared_ptr<channel::Channel>& channel, channel::End end) {
  GivenEnds* const ends = t_pickled;
  if (ends == nullptr) return channel->membership().grant(end);
  ends->given_.push_back(Given{channel, 0, end, memory::kNobody});  // what can fail comes first; a grant of 0 is none
  auto granted = channel->membership().grant(end);
  if (!granted) return granted;
  ends->given_.back().grant = *granted;
  ends->given_.back().giver = channel->arena()->current_identity();
  return granted;
}

}  // namespace shmtree::endpoint
