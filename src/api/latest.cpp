// The newest version of a value, as users have it.
#include "shmtree/latest.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "api/message.h"
#include "discovery/handle.h"
#include "endpoint/transfer.h"
#include "latest/store.h"

namespace shmtree {

using latest::Store;
using platform::WaitContext;

namespace api {

struct LatestState {
  LatestState(std::shared_ptr<Store> made, std::shared_ptr<endpoint::Name> known)
      : arena(std::make_shared<ArenaState>(made->arena())), name(std::move(known)), store(std::move(made)) {}

  static Latest wrap(std::shared_ptr<Store> store, std::shared_ptr<endpoint::Name> name) {
    return Latest(std::make_shared<LatestState>(std::move(store), std::move(name)));
  }
  static Result<Latest> open_bytes(std::span<const std::byte> bytes) {
    auto handle = discovery::decode(bytes);
    if (!handle) return std::move(handle).error();
    auto opened = discovery::open_arena(*handle);
    if (!opened) return std::move(opened).error();
    auto store = Store::open(*opened, memory::unpack(handle->block), WaitContext{});
    if (!store) return std::move(store).error();
    return wrap(std::move(*store), endpoint::join_name(handle->name, *opened));
  }

  // Null once it was closed.
  std::shared_ptr<Store> open_store() {
    const std::lock_guard guard(mutex);
    return store;
  }
  void close() {
    closed.store(true, std::memory_order_relaxed);
    std::shared_ptr<Store> last;  // let go of outside the mutex
    std::shared_ptr<endpoint::Name> last_name;
    {
      const std::lock_guard guard(mutex);
      last = std::move(store);
      last_name = std::move(name);
    }
    if (last != nullptr) last->wake();
  }

  std::shared_ptr<ArenaState> arena;
  platform::ForkSafeMutex mutex;
  std::shared_ptr<endpoint::Name> name;  // under mutex
  std::shared_ptr<Store> store;          // under mutex
  std::atomic<bool> closed{false};
};

namespace {

// What ends the waits of a call besides its deadline: the closing of the object, or a request to stop.
class UntilEnded final : public endpoint::UntilDone {
 public:
  UntilEnded(const LatestState& state, Store& store, const std::stop_token& stop) noexcept
      : state_(state), stop_(stop), wake_(stop, Wake{&store}) {}
  bool ended() const noexcept override {
    return state_.closed.load(std::memory_order_relaxed) || stop_.stop_requested();
  }

 private:
  struct Wake {
    Store* store;
    void operator()() const noexcept { store->wake(); }
  };
  const LatestState& state_;
  const std::stop_token& stop_;
  std::stop_callback<Wake> wake_;
};

Error closed_latest() {
  return closed_here("Latest");
}

// `act(store, wait)` of an object that is open.
template <class Act>
auto with_store(LatestState* state, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(std::declval<Store&>(), WaitContext{})) {
  return or_out_of_memory([&]() -> decltype(act(std::declval<Store&>(), WaitContext{})) {
    const auto store = state == nullptr ? nullptr : state->open_store();
    if (store == nullptr) return closed_latest();
    UntilEnded until(*state, *store, stop);
    auto result = act(*store, waiting(timeout, &until));
    const bool was_closed = !result && result.code() == Code::kInterrupted && !stop.stop_requested();
    if (was_closed) return closed_latest();
    return result;
  });
}

// What it refers to it keeps, so all of it is there as long as the version is held. Others read it: nothing of it may
// be written, or given away.
Result<Version> to_version(Store& store, latest::Held held) {
  memory::Arena& arena = *store.arena();
  const auto blocks = endpoint::referred_blocks(arena, arena.blocks().referred_to_by(held.block.ref()));
  const std::span<const std::byte> frame(held.block.data(), held.bytes);
  const std::uint64_t number = held.version;
  const bool copied = blocks.empty() && held.bytes <= endpoint::kCopiedMessageBytes;
  std::shared_ptr<const void> owner;
  if (!copied) owner = std::make_shared<memory::Lease>(std::move(held.block));
  Result<Item> item = value::decode(frame, std::move(owner), blocks, nullptr, !copied);
  if (item) return Version{number, std::move(*item)};
  Error error = std::move(item).error();
  error.message = "version " + std::to_string(number) + ": " + error.message;
  return error;
}

Result<std::uint64_t> publish(LatestState& state, Store& store, const Value& value, const WaitContext& wait) {
  format::FrameBuilder builder;
  Message<> message(builder, *state.arena, store.allows_pickle());
  Status encoded = message.encode(value);
  if (!encoded) return std::move(encoded).error();
  auto block = endpoint::stage_published(builder, message.blocks(), *store.arena(), wait);
  if (!block) return std::move(block).error();
  if (!message.is_ours()) return endpoint::not_ours();
  auto version = store.publish(std::move(*block), builder.total_bytes(), wait);
  if (version) message.settle();
  return version;
}

}  // namespace
}  // namespace api

using api::LatestState;
using api::with_store;

Result<std::uint64_t> Latest::publish(const Value& value, Timeout timeout) const {
  return publish(value, timeout, {});
}
Result<std::uint64_t> Latest::publish(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return with_store(state_.get(), timeout, stop,
                    [&](Store& store, const WaitContext& wait) { return api::publish(*state_, store, value, wait); });
}

Result<Version> Latest::get(std::uint64_t newer_than, Timeout timeout) const {
  return get(newer_than, timeout, {});
}
Result<Version> Latest::get(std::uint64_t newer_than, Timeout timeout, const std::stop_token& stop) const {
  return with_store(state_.get(), timeout, stop, [&](Store& store, const WaitContext& wait) -> Result<Version> {
    Status newer = store.wait_for_newer(newer_than, wait);
    if (!newer) return std::move(newer).error();
    auto held = store.newest(newer_than);
    if (!held) return std::move(held).error();
    return api::to_version(store, std::move(*held));
  });
}
Result<Version> Latest::at(std::uint64_t version) const {
  return with_store(state_.get(), {}, {}, [&](Store& store, const WaitContext&) -> Result<Version> {
    auto held = store.at(version);
    if (!held) return std::move(held).error();
    return api::to_version(store, std::move(*held));
  });
}

std::uint64_t Latest::version() const noexcept {
  const auto store = state_ == nullptr ? nullptr : state_->open_store();
  return store == nullptr ? 0 : store->version();
}
std::uint64_t Latest::history() const noexcept {
  const auto store = state_ == nullptr ? nullptr : state_->open_store();
  return store == nullptr ? 0 : store->history();
}
Result<LatestStats> Latest::stats() const {
  return with_store(state_.get(), {}, {}, [](Store& store, const WaitContext&) -> Result<LatestStats> {
    const Store::Kept kept = store.kept();
    return LatestStats{store.version(), kept.versions, kept.bytes, store.publishers()};
  });
}

Result<ArrayRef> Latest::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return with_store(state_.get(), timeout, {}, [&](Store&, const WaitContext& wait) {
    return state_->arena->new_array(dtype, std::move(shape), wait);
  });
}

Result<std::string> Latest::handle() const {
  return with_store(state_.get(), {}, {}, [&](Store& store, const WaitContext&) -> Result<std::string> {
    discovery::Handle handle = discovery::handle_of(*store.arena());
    handle.block = memory::pack(store.block());
    {
      const std::lock_guard guard(state_->mutex);
      if (state_->name != nullptr) handle.name = state_->name->path();
    }
    return api::handle_text(handle);
  });
}
Result<Latest> Latest::open(const std::string& handle) {
  return or_out_of_memory([&]() -> Result<Latest> {
    auto bytes = api::handle_bytes(handle);
    if (!bytes) return std::move(bytes).error();
    return LatestState::open_bytes(*bytes);
  });
}

void Latest::close() {
  if (state_ != nullptr) state_->close();
}
bool Latest::closed() const noexcept {
  return state_ == nullptr || state_->closed.load(std::memory_order_relaxed);
}

Latest make_latest(const LatestOptions& options) try {
  if (options.arena && api::ArenaState::of(*options.arena) == nullptr) throw BadResult(api::no_arena());
  std::shared_ptr<memory::Arena> arena;
  if (options.arena || options.name.empty()) {
    arena = api::ArenaState::of(options.arena ? *options.arena : Arena::shared().value())->arena;
  } else {
    arena = memory::Arena::create({}).value();
  }
  const bool allow_pickle = options.allow_pickle.value_or(options.name.empty());
  auto store = Store::create(arena, {.history = options.history, .allow_pickle = allow_pickle}, WaitContext{}).value();
  std::shared_ptr<endpoint::Name> name;
  if (!options.name.empty()) {
    discovery::NamedThing thing{.kind = discovery::NamedKind::kLatest, .arena = arena};
    thing.block = memory::pack(store->block());
    name = endpoint::create_name(options.name, thing).value();
  }
  return LatestState::wrap(std::move(store), std::move(name));
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

Result<Latest> open_latest(const std::string& name) {
  return or_out_of_memory([&]() -> Result<Latest> {
    auto known = endpoint::open_name(name);
    if (!known) return std::move(known).error();
    const discovery::NamedThing& thing = (*known)->thing();
    if (thing.kind != discovery::NamedKind::kLatest) {
      return Error{Code::kInvalid, "the name " + name + " is in use for something that is no Latest"};
    }
    auto store = Store::open(thing.arena, memory::unpack(thing.block), WaitContext{});
    if (!store) return std::move(store).error();
    return LatestState::wrap(std::move(*store), std::move(*known));
  });
}

Result<Latest> ItemAs<Latest>::make(const Item& item) {
  return or_out_of_memory([&]() -> Result<Latest> {
    if (item.kind() != Kind::kRegistered || item.class_name() != "shmtree:Latest") return item.mismatch("a Latest");
    const Item parts = item.at(0);
    if (parts.kind() != Kind::kTuple || parts.size() != 2) return item.mismatch("a handle");
    auto handle = parts.at(0).try_as<std::span<const std::byte>>();
    if (!handle) return std::move(handle).error();
    return LatestState::open_bytes(*handle);
  });
}

}  // namespace shmtree
