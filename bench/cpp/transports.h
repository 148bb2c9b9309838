// Transports for one small number or 1 KB between processes. Each is a class with
//   void send(std::uint64_t number)       blocks while there is no space
//   std::uint64_t receive()               returns the sent number; blocks or polls for it
// The parent creates the object, and one process uses each end.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <span>

#include "channel/channel.h"
#include "platform/futex.h"
#include "processes.h"
#include "shmtree/shmtree.h"

namespace shmtree::bench {

constexpr std::uint64_t kCapacity = 256;  // of every channel and queue here; iceoryx's maximum
constexpr std::size_t kKilobyte = 1024;
using Payload = std::array<std::uint64_t, kKilobyte / 8>;

// The way in which a receiver waits.
enum class Wait { kAsGiven, kPolling, kSpinning };

inline Payload payload_of(std::uint64_t number) {
  Payload payload;
  payload.fill(number);
  return payload;
}
inline std::uint64_t checked_number(const void* bytes, std::size_t size) {
  std::uint64_t first = 0, last = 0;
  require(size == kKilobyte, "a payload of another size");
  std::memcpy(&first, bytes, 8);
  std::memcpy(&last, static_cast<const std::byte*>(bytes) + size - 8, 8);
  require(first == last, "a torn payload");
  return first;
}

// Public API: a number.
class ValueTransport {
 public:
  explicit ValueTransport(Wait wait = Wait::kAsGiven) : polls_(wait == Wait::kPolling) {
    const auto spin = std::chrono::seconds(wait == Wait::kSpinning ? 1 : 0);
    pair_.first.set_spin(spin).value(), pair_.second.set_spin(spin).value();
  }
  void send(std::uint64_t number) { pair_.first.put(number).value(); }
  std::uint64_t receive() { return receive_item().as<std::uint64_t>(); }
  void close() { pair_.first.close(), pair_.second.close(); }

 protected:
  // Returns the result of `get` with the receiver and a timeout.
  template <class Get>
  auto next(Get get) {
    if (!polls_) return get(pair_.second, Timeout()).value();
    for (;;) {
      auto got = get(pair_.second, std::chrono::nanoseconds(0));
      if (got.ok() || got.code() != Code::kEmpty) return std::move(got).value();
    }
  }
  Item receive_item() {
    return next([](const Receiver& receiver, Timeout timeout) { return receiver.get(timeout); });
  }
  std::pair<Sender, Receiver> pair_ =
      make_pair({.capacity = kCapacity, .arena = Arena::create({.max_bytes = 64 << 20}).value()});

 private:
  bool polls_;
};

// Public API: an array of 1 KB, copied at the sender and viewed at the receiver.
class KilobyteTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) {
    payload_.fill(number);
    pair_.first.put(std::span<const std::uint64_t>(payload_)).value();
  }
  std::uint64_t receive() {
    const Item item = receive_item();
    const std::span<const std::uint64_t> view = item.span<const std::uint64_t>();
    return checked_number(view.data(), view.size_bytes());
  }

 private:
  Payload payload_{};
};

// Public API: an array of 1 KB, written in place.
class InPlaceTransport : public KilobyteTransport {
 public:
  using KilobyteTransport::KilobyteTransport;
  void send(std::uint64_t number) {
    NewArray array = pair_.first.new_array(DType::kUInt64, {kKilobyte / 8}).value();
    auto* payload = static_cast<Payload*>(array.mutable_data());
    payload->fill(number);
    pair_.first.put(std::move(array)).value();
  }
};

// Public API: a dict of 1 KB, most of it an array.
class TreeTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) {
    state_.fill(number);
    pair_.first.put(Dict{{"state", std::span<const std::uint64_t>(state_)}, {"step", number}, {"reward", 1.0}}).value();
  }
  std::uint64_t receive() {
    const Item item = receive_item();
    const Item state = item["state"];
    const std::span<const std::uint64_t> view = state.span<const std::uint64_t>();
    const auto step = item["step"].as<std::uint64_t>();
    require(view.size() == state_.size() && view.front() == step && view.back() == step, "a torn tree");
    return step;
  }

 private:
  std::array<std::uint64_t, kKilobyte / 8 - 8> state_{};  // keys and numbers take the rest
};

// Public API without a tree: bytes, copied at both ends.
class BytesTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) {
    payload_.fill(number);
    pair_.first.put_bytes(std::as_bytes(std::span(payload_))).value();
  }
  std::uint64_t receive() {
    const FlatItem item = next([](const Receiver& receiver, Timeout timeout) { return receiver.get_bytes(timeout); });
    return checked_number(item.bytes().data(), item.size());
  }

 private:
  Payload payload_{};
};

// Public API: a struct, copied at both ends.
class StructTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) { pair_.first.put_struct(payload_of(number)).value(); }
  std::uint64_t receive() {
    const Payload payload =
        next([](const Receiver& receiver, Timeout timeout) { return receiver.get_struct<Payload>(timeout); });
    return checked_number(payload.data(), kKilobyte);
  }
};

// Public API: a struct, written in place.
class LoanTransport : public StructTransport {
 public:
  using StructTransport::StructTransport;
  void send(std::uint64_t number) {
    Loaned<Payload> loan = pair_.first.loan<Payload>().value();
    loan->fill(number);
    pair_.first.put(std::move(loan)).value();
  }
};

// The layer below the public API, to show the cost of values: 1 KB written in place into a block.
class BlockTransport {
 public:
  explicit BlockTransport(Wait wait = Wait::kAsGiven) : polls_(wait == Wait::kPolling) {
    channel_->membership().join(channel::End::kSending).value();
    channel_->membership().join(channel::End::kReceiving).value();
  }
  void send(std::uint64_t number) {
    channel::Outgoing message{.bytes = kKilobyte};
    message.block = channel_->arena()->allocate(kKilobyte, memory::BlockKind::kMessage, {}).value();
    const Payload payload = payload_of(number);
    std::memcpy(message.block.data(), payload.data(), kKilobyte);
    channel_->sending().put(message, {}).value();
  }
  std::uint64_t receive() {
    const platform::Deadline until = polls_ ? platform::Deadline::immediate() : platform::Deadline{};
    for (;;) {
      channel::Incoming message;
      const Status got = channel_->receiving().get(message, {.deadline = until});
      if (got.ok()) return checked_number(message.frame().data(), message.frame().size());
      require(got.code() == Code::kEmpty, "get");
    }
  }

 private:
  std::shared_ptr<channel::Channel> channel_ =
      channel::Channel::create(memory::Arena::create({.max_bytes = 64 << 20}).value(), {.capacity = kCapacity}).value();
  bool polls_;
};

// The lower bound of the machine: one shared word.
class WordTransport {
 public:
  explicit WordTransport(Wait wait) : polls_(wait == Wait::kPolling) {}
  void send(std::uint64_t number) {
    word_->store(static_cast<std::uint32_t>(number + 1), std::memory_order_release);
    if (!polls_) platform::futex_wake(*word_.operator->(), 1);
  }
  std::uint64_t receive() {
    std::uint32_t seen;
    while ((seen = word_->load(std::memory_order_acquire)) == last_) {
      if (!polls_) platform::futex_wait(*word_.operator->(), last_, 1'000'000'000);
    }
    last_ = seen;
    return seen - 1;
  }

 private:
  Shared<std::atomic<std::uint32_t>> word_;
  std::uint32_t last_ = 0;
  bool polls_;
};

}  // namespace shmtree::bench
