#include "replay/buffer/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace shmtree::replay {

namespace {

std::uint32_t new_stream(const Store& store) {
  static std::atomic<std::uint64_t> streams{0};
  Random mix(std::uint64_t{store.arena()->current_identity()} << 32 ^ streams.fetch_add(1));
  return static_cast<std::uint32_t>(mix.next());
}

}  // namespace

Stream::Stream(const Buffer& buffer, memory::Identity me)
    : owner(me), tables(buffer.tables()), writer(buffer.store(), std::nullopt, tables.get()) {}

std::uint32_t Stream::number() {
  if (!writer.stream()) writer.set_stream(new_stream(*tables->store()));
  return *writer.stream();
}

// The stream may be the parent's. If the mutex was locked at the fork, the child leaks the stream, since it may be in
// an inconsistent state.
void release_stream(std::shared_ptr<Stream> stream) {
  if (!stream || stream->belongs_to_this_process()) return;
  if (stream->mutex.try_lock()) {
    stream->mutex.unlock();
  } else {
    new std::shared_ptr<Stream>(std::move(stream));
  }
}

Result<std::shared_ptr<Stream>> stream_of(const Buffer& buffer, std::shared_ptr<Stream>& kept) {
  memory::Arena& arena = *buffer.store()->arena();
  const memory::Identity now = arena.current_identity();
  if (kept != nullptr && kept->owner == now && now != memory::kNoIdentity) [[likely]]
    return kept;
  auto me = arena.identity();
  if (!me) return std::move(me).error();
  release_stream(std::move(kept));
  kept = std::make_shared<Stream>(buffer, *me);
  return kept;
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

}  // namespace shmtree::replay
