// Implements Latest of the public API.
#include "shmtree/latest.h"

#include <utility>

#include "api/published.h"
#include "endpoint/copy_policy.h"
#include "latest/store.h"

namespace shmtree {

using latest::Store;
using platform::WaitContext;

namespace api {

struct LatestState : PublishedState<Store>, Openable<LatestState, Store, Latest> {
  using PublishedState::PublishedState;

  static Latest wrap(std::shared_ptr<Store> store, std::shared_ptr<endpoint::Name> name) {
    const auto arena = store->arena();
    return Latest(std::make_shared<LatestState>(std::move(store), arena, std::move(name)));
  }
};

namespace {

template <class Act>
auto with_store(LatestState* state, const Timeout& timeout, const std::stop_token& stop, Act act) {
  return with_part<Store>(state, "Latest", timeout, stop, std::move(act));
}

Result<Version> to_version(Store& store, latest::Held held) {
  const std::span<const std::byte> frame(held.block.data(), held.bytes);
  const auto policy = endpoint::copy_policy_of_published(endpoint::CopyPolicy::kAuto, store, true);
  Result<Item> item = to_item(*store.arena(), frame, held.block, policy);
  if (item) return Version{held.version, std::move(*item)};
  Error error = std::move(item).error();
  error.message = "version " + std::to_string(held.version) + ": " + error.message;
  return error;
}

}  // namespace
}  // namespace api

using api::LatestState;
using api::with_store;

Result<std::uint64_t> Latest::publish(const Value& value, Timeout timeout) const {
  return publish(value, timeout, {});
}
Result<std::uint64_t> Latest::publish(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return with_store(state_.get(), timeout, stop, [&](Store& store, const WaitContext& wait) -> Result<std::uint64_t> {
    api::OwnedMessage owned(*state_->arena, store.allows_pickle());
    Status encoded = owned.message.encode(value);
    if (!encoded) return std::move(encoded).error();
    return endpoint::publish(store, owned.message, wait);
  });
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
  return api::number_of<Store>(state_.get(), [](const Store& store) { return store.version(); });
}
std::uint64_t Latest::history() const noexcept {
  return api::number_of<Store>(state_.get(), [](const Store& store) { return store.history(); });
}
Result<LatestStats> Latest::stats() const {
  return with_store(state_.get(), {}, {}, [](Store& store, const WaitContext&) -> Result<LatestStats> {
    const Store::Retained kept = store.retained();
    return LatestStats{store.version(), kept.versions, kept.bytes, store.publishers()};
  });
}

Result<NewArray> Latest::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return with_store(state_.get(), timeout, {}, [&](Store&, const WaitContext& wait) {
    return state_->arena->new_array(dtype, std::move(shape), wait);
  });
}

Result<std::string> Latest::handle() const {
  return with_store(state_.get(), {}, {}, [&](Store& store, const WaitContext&) -> Result<std::string> {
    return state_->handle(store.block());
  });
}
Result<Latest> Latest::open(const std::string& handle) {
  return or_out_of_memory([&] { return LatestState::open(api::find_handle(handle)); });
}

void Latest::close() {
  if (state_ != nullptr) state_->close([](Store& store) { store.close(); });
}
void Latest::fail() {
  if (state_ != nullptr) state_->close([](Store& store) { store.close(memory::Failure::kNoExitCode); });
}
Status Latest::set_spin(std::chrono::nanoseconds spin) const {
  return api::set_spin(state_.get(), "Latest", spin);
}
std::chrono::nanoseconds Latest::spin() const noexcept {
  return api::spin_of(state_.get());
}
bool Latest::closed() const noexcept {
  return state_ == nullptr || state_->closed();
}

Latest make_latest(const LatestOptions& options) {
  const auto request = api::request_of(options, discovery::NamedKind::kLatest);
  return LatestState::make(request, latest::Options{options.history, request.allows_pickle()});
}

Result<Latest> open_latest(const std::string& name, Timeout timeout) {
  return LatestState::open_named(name, discovery::NamedKind::kLatest, timeout);
}

Result<Latest> ItemAs<Latest>::make(const Item& item) {
  return or_out_of_memory([&] { return LatestState::open(api::find_item(item, "shmtree:Latest", "a Latest")); });
}

}  // namespace shmtree
