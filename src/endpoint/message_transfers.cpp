#include "endpoint/message_transfers.h"

#include <new>
#include <utility>

#include "memory/transfers.h"

namespace shmtree::endpoint {

namespace {

constinit thread_local MessageTransfers* t_pickled = nullptr;

void note_arrival(std::uint64_t number, Name* name) noexcept {
  if (name == nullptr || number == 0) return;
  try {
    name->note_arrival(number).ok();
  } catch (const std::bad_alloc&) {  // The giver keeps the name alive until it exits.
  }
}

}  // namespace

MessageTransfers::Pickling::Pickling(MessageTransfers* transfers) noexcept
    : before_(std::exchange(t_pickled, transfers)) {}
MessageTransfers::Pickling::~Pickling() {
  t_pickled = before_;
}

void MessageTransfers::Begun::take_back() const noexcept {
  if (arena->current_identity() != giver) return;
  if (channel != nullptr) {
    channel->membership().end_transfer(number, end);
  } else {
    memory::end_transfer(*arena, block, number);
  }
  if (name != nullptr) name->take_back(number);
}

void MessageTransfers::carry(memory::Arena& arena, memory::BlockRef block) const noexcept {
  if (empty()) return;
  for (const Begun& each : *begun_) {
    if (each.arena->current_identity() == each.giver) memory::carry_transfer(*each.arena, each.number, arena, block);
  }
}

void MessageTransfers::end_all() noexcept {
  for (const Begun& each : *begun_) each.take_back();
  begun_.reset();
}

// The steps that can fail come first. The number 0 stands for no transfer.
template <class Make>
Result<std::uint64_t> MessageTransfers::note(Begun begun, const Name* name, Make make) {
  MessageTransfers* const all = t_pickled;
  if (all != nullptr) {
    if (all->empty()) all->begun_ = std::make_unique<std::vector<Begun>>();
    all->begun_->push_back(begun);
  }
  auto number = make();
  if (!number) {
    if (all != nullptr) all->begun_->pop_back();
    return number;
  }
  auto kept_name = name == nullptr ? nullptr : keep_name_for(*name, *number);
  if (all == nullptr) return number;
  Begun& noted = all->begun_->back();
  noted.number = *number;
  noted.giver = begun.arena->current_identity();
  noted.name = std::move(kept_name);
  return number;
}

Result<std::uint64_t> MessageTransfers::begin(const std::shared_ptr<channel::Channel>& channel, channel::End end,
                                              const Name* name) {
  return note({.arena = channel->arena(), .channel = channel, .end = end}, name,
              [&] { return channel->membership().begin_transfer(end); });
}

Result<std::uint64_t> MessageTransfers::begin(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                              const Name* name) {
  return note({.arena = arena, .block = block}, name,
              [&] { return memory::begin_transfer(arena, block, memory::Transferred::kMemory); });
}

void end_transfer(channel::Channel& channel, std::uint64_t number, channel::End end, Name* name) noexcept {
  channel.membership().end_transfer(number, end);
  note_arrival(number, name);
}

void end_transfer(memory::Arena& arena, std::uint64_t block, std::uint64_t number, Name* name) noexcept {
  memory::end_transfer(arena, block, number);
  note_arrival(number, name);
}

}  // namespace shmtree::endpoint
