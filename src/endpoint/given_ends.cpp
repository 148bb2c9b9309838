#include "endpoint/given_ends.h"

#include <new>
#include <utility>

#include "memory/given_memory.h"

namespace shmtree::endpoint {

namespace {

constinit thread_local GivenEnds* t_pickled = nullptr;

void note_arrival(std::uint64_t grant, Name* name) noexcept {
  if (name == nullptr || grant == 0) return;
  try {
    name->note_arrival(grant).ok();
  } catch (const std::bad_alloc&) {  // its giver keeps the name until it ends
  }
}

}  // namespace

GivenEnds::Pickling::Pickling(GivenEnds* ends) noexcept : before_(std::exchange(t_pickled, ends)) {}
GivenEnds::Pickling::~Pickling() {
  t_pickled = before_;
}

void GivenEnds::Given::take_back() const noexcept {
  if (arena->current_identity() != giver) return;
  if (channel != nullptr) {
    channel->membership().claim(grant, end);
  } else {
    memory::claim_memory(*arena, grant);
  }
  if (name != nullptr) name->take_back(grant);
}

// What can fail comes first; a grant of 0 is none.
template <class Make>
Result<std::uint64_t> GivenEnds::note(Given given, const Name* name, Make make) {
  GivenEnds* const ends = t_pickled;
  if (ends != nullptr) ends->given_.push_back(given);
  auto granted = make();
  if (!granted) {
    if (ends != nullptr) ends->given_.pop_back();
    return granted;
  }
  auto known = name == nullptr ? nullptr : give_name(*name, *granted);
  if (ends == nullptr) return granted;
  Given& noted = ends->given_.back();
  noted.grant = *granted;
  noted.giver = given.arena->current_identity();
  noted.name = std::move(known);
  return granted;
}

Result<std::uint64_t> GivenEnds::grant(const std::shared_ptr<channel::Channel>& channel, channel::End end,
                                       const Name* name) {
  return note({.arena = channel->arena(), .channel = channel, .end = end}, name,
              [&] { return channel->membership().grant(end); });
}

Result<std::uint64_t> GivenEnds::grant(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                       const Name* name) {
  return note({.arena = arena}, name, [&] { return memory::give_memory(arena, block); });
}

void claim(channel::Channel& channel, std::uint64_t grant, channel::End end, Name* name) noexcept {
  channel.membership().claim(grant, end);
  note_arrival(grant, name);
}

void claim(memory::Arena& arena, std::uint64_t grant, Name* name) noexcept {
  memory::claim_memory(arena, grant);
  note_arrival(grant, name);
}

}  // namespace shmtree::endpoint
