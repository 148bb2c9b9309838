#include "bindings/replay/streams.h"

#include <algorithm>
#include <chrono>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"

namespace shmtree::python {

using platform::WaitContext;

namespace {

Pool<LeafAddresses>& addresses_pool() {
  static Pool<LeafAddresses>* const pool = new Pool<LeafAddresses>();
  return *pool;
}

}  // namespace

BorrowedAddresses::BorrowedAddresses() : taken_(addresses_pool().take()) {}

BorrowedAddresses::~BorrowedAddresses() {
  taken_->clear();
  addresses_pool().give_back(taken_);
}

// Of a stream that may be the parent's: where a thread of it was at work in it, there is nothing to take apart here.
void let_go(std::shared_ptr<Stream> stream) {
  if (!stream || stream->owner == stream->tables->store()->arena()->current_identity()) return;
  if (stream->mutex.try_lock()) {
    stream->mutex.unlock();
  } else {
    new std::shared_ptr<Stream>(std::move(stream));
  }
}

WriterState::~WriterState() {
  let_go(std::move(stream));
}

std::shared_ptr<Stream> stream_of(WriterState& state) {
  if (state.closed) {
    PyErr_SetString(error_types().channel_closed, "this writer was closed");
    return nullptr;
  }
  const memory::Identity now = state.replay->store->arena()->current_identity();
  if (state.stream && state.stream->owner == now && now != memory::kNobody) [[likely]]
    return state.stream;
  auto me = state.replay->store->arena()->identity();
  if (!me) {
    raise(me.error());
    return nullptr;
  }
  let_go(std::move(state.stream));
  state.stream = std::make_shared<Stream>(*state.replay, *me);
  return state.stream;
}

bool lock(Stream& stream, const WaitContext& wait) {
  constexpr std::int64_t kSliceNs = 50'000'000;
  if (stream.mutex.try_lock()) [[likely]]
    return true;
  for (;;) {
    const auto slice = std::chrono::nanoseconds(wait.deadline.remaining_ns(kSliceNs));
    {
      const platform::BlockingScope blocking(wait.hooks);
      if (stream.mutex.try_lock_for(slice)) return true;
    }
    if (wait.interrupted() || wait.deadline.passed()) return false;
  }
}

bool is_done(const Replay& replay, const void* leaf) noexcept {
  const auto* bytes = static_cast<const std::byte*>(leaf);
  const std::size_t count = replay.spec.leaves[*replay.spec.done].bytes();
  return std::any_of(bytes, bytes + count, [](std::byte byte) { return byte != std::byte{}; });
}

}  // namespace shmtree::python
