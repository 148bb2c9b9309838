// Implements Subscriber.
#include <cstring>
#include <utility>

#include "api/broadcast_state.h"
#include "api/flat.h"
#include "api/receiving.h"
#include "endpoint/copy_policy.h"
#include "format/flat.h"
#include "platform/of_thread.h"
#include "value/tree.h"

namespace shmtree {

using api::SubscriberState;
using platform::WaitContext;

namespace {

using CoreSubscriber = broadcast::Subscriber;

template <class Act>
auto with_reader(SubscriberState* state, const Timeout& timeout, const std::stop_token& stop, Act act) {
  return api::with_part<CoreSubscriber>(state, "Subscriber", timeout, stop, std::move(act));
}

Error of_message(Error error, std::uint64_t ticket) {
  error.ticket = ticket;
  error.message = "message " + std::to_string(ticket) + ": " + error.message;
  return error;
}

// Per-thread memory for a message. The destructor releases the block, unless the message was returned.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(CoreSubscriber& reader) : reader_(reader) {
    if (*kept_ == nullptr) *kept_ = std::make_unique<broadcast::Received>();
  }
  ~ReceiveBuffer() {
    if (*kept_ != nullptr) message().block.reset();
  }
  ReceiveBuffer(const ReceiveBuffer&) = delete;
  ReceiveBuffer& operator=(const ReceiveBuffer&) = delete;
  broadcast::Incoming& message() const noexcept { return (*kept_)->message; }
  // The message could not be built, so the next call reads it again. Needs no memory.
  void give_back() noexcept { reader_.give_back(std::move(*kept_), broadcast::FailedBuild::kCounted); }

 private:
  CoreSubscriber& reader_;
  const platform::OfThread<std::unique_ptr<broadcast::Received>> kept_;
};

// Receives the next message and returns make(ring, message). Returns a deferred error of an earlier call first.
template <class Made, class Make>
Result<Made> receive(SubscriberState& state, CoreSubscriber& reader, const WaitContext& wait, Make make) {
  if (auto error = state.take_deferred()) return *std::move(error);
  ReceiveBuffer buffer(reader);
  Status got = reader.get(buffer.message(), wait);
  if (!got) return std::move(got).error();
  const std::uint64_t ticket = buffer.message().ticket;
  Result<Made> made = or_out_of_memory([&] { return make(*reader.ring(), buffer.message()); });
  if (made) return made;
  if (made.code() == Code::kOutOfSharedMemory) buffer.give_back();
  return of_message(std::move(made).error(), ticket);
}

// Decides whether a message is copied out of its block. `in_block` is false for a message that came inline.
endpoint::CopyPolicy policy_of(const broadcast::Ring& ring, bool in_block) noexcept {
  return endpoint::copy_policy_of_published(endpoint::CopyPolicy::kAuto, ring, in_block);
}

Result<Item> item_of(const broadcast::Ring& ring, broadcast::Incoming& message) {
  const auto frame = message.frame();
  return api::to_item(*ring.arena(), frame, message.block, policy_of(ring, message.block.valid()));
}

// Returns the bytes of a message that is not a flat frame, such as an array of uint8. The message continues to own its
// block.
Result<FlatItem> flat_of_item(const broadcast::Ring& ring, broadcast::Incoming& message) {
  memory::Lease block;
  if (message.block.valid()) {
    auto held = ring.arena()->hold_referred(message.block.ref());
    if (!held) return std::move(held).error();
    block = std::move(*held);
  }
  Result<Item> item = api::to_item(*ring.arena(), message.frame(), block, policy_of(ring, block.valid()));
  if (!item) return std::move(item).error();
  const auto bytes = detail::bytes_in(*item);
  if (!bytes && bytes.code() == Code::kOutOfSharedMemory) return bytes.error();
  if (!bytes) return Error{Code::kInvalid, bytes.error().message};
  if (!detail::is_aligned(*bytes)) return detail::flat_copy(*bytes);
  return detail::FlatAccess::make(value::Tree::of(*item), nullptr, *bytes);
}

Result<FlatItem> flat_of(const broadcast::Ring& ring, broadcast::Incoming& message) {
  const auto run = format::flat_run(message.frame());
  if (!run) return flat_of_item(ring, message);
  if (endpoint::is_copied(policy_of(ring, message.block.valid()), run->size(), false)) return detail::flat_copy(*run);
  api::OfferedLease offered(message.block);
  auto made = detail::FlatAccess::make(offered.owner(), nullptr, *run);
  offered.made();
  return made;
}

Result<std::vector<Item>> receive_many(SubscriberState& state, CoreSubscriber& reader, std::size_t most,
                                       const WaitContext& wait, std::chrono::nanoseconds within) {
  if (most == 0) return Error{Code::kInvalid, "get_many() of 0 items; ask for at least 1"};
  std::vector<Item> items;
  items.reserve(1);
  Result<Item> next = receive<Item>(state, reader, wait, item_of);
  if (!next) return std::move(next).error();
  items.push_back(std::move(*next));
  const WaitContext rest{platform::Deadline::after(within), wait.hooks, wait.spin};
  while (items.size() < most && (reader.size() != 0 || !rest.deadline.passed()) &&
         api::has_space_for_one(items)) {  // reserves before it receives
    next = or_out_of_memory([&] { return receive<Item>(state, reader, rest, item_of); });
    if (next) {
      items.push_back(std::move(*next));
      continue;
    }
    // These errors are not stored, since the next call would get them again. kEmpty means that the time has passed, or
    // that another thread has received the message first.
    const Code code = next.code();
    const bool is_persistent =
        code == Code::kEmpty || code == Code::kClosed || code == Code::kPeerDied || code == Code::kOutOfSharedMemory;
    if (!is_persistent && code != Code::kInterrupted) state.defer(std::move(next).error());
    break;
  }
  return items;
}

}  // namespace

Result<Item> Subscriber::get(Timeout timeout, const std::stop_token& stop) const {
  return with_reader(state_.get(), timeout, stop, [&](CoreSubscriber& reader, const WaitContext& wait) {
    return receive<Item>(*state_, reader, wait, item_of);
  });
}
Result<std::vector<Item>> Subscriber::get_many(std::size_t most, Timeout timeout, const std::stop_token& stop) const {
  return get_many(most, timeout, std::chrono::nanoseconds(0), stop);
}
Result<std::vector<Item>> Subscriber::get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                               const std::stop_token& stop) const {
  return with_reader(state_.get(), timeout, stop, [&](CoreSubscriber& reader, const WaitContext& wait) {
    return receive_many(*state_, reader, most, wait, within);
  });
}
Result<FlatItem> Subscriber::get_bytes(Timeout timeout, const std::stop_token& stop) const {
  return with_reader(state_.get(), timeout, stop, [&](CoreSubscriber& reader, const WaitContext& wait) {
    return receive<FlatItem>(*state_, reader, wait, flat_of);
  });
}
Status Subscriber::get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const {
  const auto make = [out](const broadcast::Ring& ring, broadcast::Incoming& message) -> Status {
    auto item = flat_of(ring, message);
    if (!item) return std::move(item).error();
    if (item->size() != out.size()) return detail::other_size(item->size(), out.size());
    std::memcpy(out.data(), item->bytes().data(), out.size());
    return success();
  };
  return with_reader(state_.get(), timeout, stop, [&](CoreSubscriber& reader, const WaitContext& wait) {
    return receive<Unit>(*state_, reader, wait, make);
  });
}

std::uint64_t Subscriber::size() const noexcept {
  return api::number_of<CoreSubscriber>(state_.get(), [](const CoreSubscriber& reader) { return reader.size(); });
}
std::uint64_t Subscriber::missed() const noexcept {
  return api::number_of<CoreSubscriber>(state_.get(), [](const CoreSubscriber& reader) { return reader.missed(); });
}
Result<int> Subscriber::fileno() const {
  return with_reader(state_.get(), {}, {}, [](CoreSubscriber& reader, const WaitContext&) { return reader.fd(); });
}

Result<std::string> Subscriber::handle() const {
  return with_reader(state_.get(), {}, {}, [&](CoreSubscriber& reader, const WaitContext&) -> Result<std::string> {
    auto block = reader.give();
    if (!block) return std::move(block).error();
    return api::give_handle(state_->arena->arena, memory::pack(*block), state_->name().get());
  });
}
Result<Subscriber> Subscriber::open(const std::string& handle) {
  return or_out_of_memory([&] { return SubscriberState::open(api::find_handle(handle)); });
}
Result<Subscriber> ItemAs<Subscriber>::make(const Item& item) {
  return or_out_of_memory(
      [&] { return SubscriberState::open(api::find_item(item, "shmtree:Subscriber", "a Subscriber")); });
}

void Subscriber::close() {
  if (state_ == nullptr) return;
  state_->close([](CoreSubscriber& reader) {
    reader.close();
    reader.wake();
  });
}
Status Subscriber::set_spin(std::chrono::nanoseconds spin) const {
  return api::set_spin(state_.get(), "Subscriber", spin);
}
std::chrono::nanoseconds Subscriber::spin() const noexcept {
  return api::spin_of(state_.get());
}
bool Subscriber::closed() const noexcept {
  return state_ == nullptr || state_->closed();
}

}  // namespace shmtree
