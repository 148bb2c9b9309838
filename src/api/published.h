// Common parts of Latest, Broadcast and Subscriber. Each handle is an object of this process that represents an object
// in shared memory. Each value may have several readers.
//
// Thread safety: any call from any thread, like the handles.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/message.h"
#include "endpoint/copy_policy.h"
#include "endpoint/message_transfers.h"
#include "endpoint/publish.h"
#include "endpoint/ring_port.h"
#include "memory/transfers.h"

namespace shmtree::api {

// The state behind a handle. A Part has wake(), which wakes the threads that wait in its calls.
template <class Part>
struct PublishedState : endpoint::RingPort<Part> {
  PublishedState(std::shared_ptr<Part> part, const std::shared_ptr<memory::Arena>& in,
                 std::shared_ptr<endpoint::Name> name)
      : endpoint::RingPort<Part>(std::move(part), std::move(name)), arena(ArenaState::for_arena(in)) {
    spin.set_as(in->spin());
  }

  // Returns a handle of `block`, the block of this object. The block stays alive while the handle is in transit
  // (api::give_handle()).
  Result<std::string> handle(memory::BlockRef block) {
    return give_handle(arena->arena, memory::pack(block), this->name().get());
  }

  const std::shared_ptr<ArenaState> arena;
  platform::SpinSetting spin{};
};

// The calls set_spin() and spin() of a handle. A null state is a moved-from object; `name` names it in the error.
template <class State>
Status set_spin(State* state, const char* name, std::chrono::nanoseconds spin) {
  return or_out_of_memory(
      [&]() -> Status { return state == nullptr ? Status(closed_here(name)) : state->spin.set_ns(spin.count()); });
}
template <class State>
std::chrono::nanoseconds spin_of(const State* state) noexcept {
  return std::chrono::nanoseconds(state == nullptr ? 0 : state->spin.ns());
}

// Ends the waits of a call before its deadline: the object was closed, or a stop was requested.
template <class Part>
class UntilEnded final : public endpoint::UntilDone {
 public:
  UntilEnded(const endpoint::RingPort<Part>& port, Part& part, const std::stop_token& stop) noexcept
      : port_(port), stop_(stop), wake_(stop, Wake{&part}) {}
  bool ended() const noexcept override { return port_.closed() || stop_.stop_requested(); }

 private:
  struct Wake {
    Part* part;
    void operator()() const noexcept { part->wake(); }
  };
  const endpoint::RingPort<Part>& port_;
  const std::stop_token& stop_;
  std::stop_callback<Wake> wake_;
};

// Returns act(part, wait), or kClosed if the object is closed. `name` names the object in errors. A null state is a
// moved-from object.
template <class Part, class Act>
auto with_part(PublishedState<Part>* state, const char* name, const Timeout& timeout, const std::stop_token& stop,
               Act act) -> decltype(act(std::declval<Part&>(), platform::WaitContext{})) {
  return or_out_of_memory([&]() -> decltype(act(std::declval<Part&>(), platform::WaitContext{})) {
    const auto part = state == nullptr ? nullptr : state->part();
    if (part == nullptr) return closed_here(name);
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    UntilEnded<Part> until(*state, *part, stop);
    auto result = act(*part, waiting(timeout, &until, &state->spin));
    const bool was_closed = !result && result.code() == Code::kInterrupted && !stop.stop_requested();
    if (was_closed) return closed_here(name, result.error());
    return result;
  });
}
// Returns read(part), or 0 if the object is closed.
template <class Part, class Read>
std::uint64_t number_of(PublishedState<Part>* state, Read read) noexcept {
  const auto part = state == nullptr ? nullptr : state->part();
  return part == nullptr ? 0 : read(*part);
}

// A Message with its own FrameBuilder.
struct OwnedMessage {
  OwnedMessage(ArenaState& arena, bool allows_pickle) : message(builder, arena, allows_pickle) {}

  format::FrameBuilder builder{};
  Message message;
};

// Decodes a frame that many processes read. `block`, if valid, contains the frame and keeps the referred blocks alive.
// An Item that views the block takes the lease over; `block` is unchanged if there is no Item, or if the Item is a copy
// (`policy`).
Result<Item> to_item(memory::Arena& arena, std::span<const std::byte> frame, memory::Lease& block,
                     endpoint::CopyPolicy policy);

// Moves a lease to a shared owner. The destructor returns it to `from` unless made() was called.
class OfferedLease {
 public:
  explicit OfferedLease(memory::Lease& from) : from_(from), owner_(std::make_shared<memory::Lease>(std::move(from))) {}
  ~OfferedLease() {
    if (!is_made_) from_ = std::move(*owner_);
  }
  OfferedLease(const OfferedLease&) = delete;
  OfferedLease& operator=(const OfferedLease&) = delete;
  const std::shared_ptr<memory::Lease>& owner() const noexcept { return owner_; }
  void made() noexcept { is_made_ = true; }

 private:
  memory::Lease& from_;
  const std::shared_ptr<memory::Lease> owner_;
  bool is_made_ = false;
};

// The object that a handle leads to. After find_handle() it is in transit until note_arrival().
struct Found {
  std::shared_ptr<memory::Arena> arena;
  memory::BlockRef block;
  std::shared_ptr<endpoint::Name> name;
  std::uint64_t transfer = 0;

  void note_arrival() const noexcept { endpoint::end_transfer(*arena, memory::pack(block), transfer, name.get()); }
};
Result<Found> find_handle(std::span<const std::byte> handle);
Result<Found> find_handle(const std::string& text);

// Opens and makes objects of the public class Handle. `State::wrap(part, name)` makes the handle.
template <class State, class Part, class Handle>
struct Openable {
  static Result<Handle> open(Result<Found> found) {
    if (!found) return std::move(found).error();
    auto part = Part::open(found->arena, found->block, platform::WaitContext{});
    if (!part) return std::move(part).error();
    found->note_arrival();
    return State::wrap(std::move(*part), std::move(found->name));
  }
  static Result<Handle> open_named(const std::string& name, discovery::NamedKind kind, const Timeout& timeout) {
    return or_out_of_memory([&] { return wrapped(endpoint::open_object<Part>(name, kind, timeout)); });
  }
  // Makes a new object with `options`. With exist_ok, opens the object of that name if there is one. Throws BadResult.
  template <class... Options>
  static Handle make(const endpoint::ObjectRequest& request, const Options&... options) {
    return or_out_of_memory(
               [&] { return wrapped(endpoint::make_object<Part>(request, platform::WaitContext{}, options...)); })
        .value();
  }

 private:
  static Result<Handle> wrapped(Result<endpoint::Known<Part>> known) {
    if (!known) return std::move(known).error();
    return State::wrap(std::move(known->object), std::move(known->name));
  }
};
// Finds the object of the Python class `name` in a message from Python. `what` names it in errors.
Result<Found> find_item(const Item& item, std::string_view name, const char* what);

}  // namespace shmtree::api
