// What Latest, Broadcast and Subscriber have in common: objects of this process that name a thing of many processes,
// and values that go to many readers.
//
// Thread safety: that of the handles, any call from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/message.h"
#include "endpoint/copy_policy.h"
#include "endpoint/published.h"
#include "endpoint/transfers.h"
#include "memory/transfers.h"

namespace shmtree::api {

// What an object has until it is closed. A Thing has wake(), for whoever waits in a call of it.
template <class Thing>
struct Closable {
  Closable(std::shared_ptr<Thing> made, const std::shared_ptr<memory::Arena>& in, std::shared_ptr<endpoint::Name> known)
      : arena(ArenaState::for_arena(in)), name(std::move(known)), thing(std::move(made)) {}

  // Null once it was closed.
  std::shared_ptr<Thing> get() {
    const std::lock_guard guard(mutex);
    return thing;
  }
  // `end` ends what it had.
  template <class End>
  void close(End end) {
    closed.store(true, std::memory_order_relaxed);
    std::shared_ptr<Thing> last;  // let go of outside the mutex
    std::shared_ptr<endpoint::Name> last_name;
    {
      const std::lock_guard guard(mutex);
      last = std::move(thing);
      last_name = std::move(name);
    }
    if (last != nullptr) end(*last);
    memory::sweep_transfers();
  }
  std::shared_ptr<endpoint::Name> known_name() {
    const std::lock_guard guard(mutex);
    return name;
  }
  // A text by which another process finds the block of the thing, which is kept for it (api::give_handle()).
  Result<std::string> handle(memory::BlockRef block) {
    return give_handle(arena->arena, memory::pack(block), known_name().get());
  }

  const std::shared_ptr<ArenaState> arena;
  platform::ForkSafeMutex mutex;
  std::shared_ptr<endpoint::Name> name;  // under mutex
  std::shared_ptr<Thing> thing;          // under mutex
  std::atomic<bool> closed{false};
};

// What ends the waits of a call besides its deadline: the closing of the object, or a request to stop.
template <class Thing>
class UntilEnded final : public endpoint::UntilDone {
 public:
  UntilEnded(const std::atomic<bool>& closed, Thing& thing, const std::stop_token& stop) noexcept
      : closed_(closed), stop_(stop), wake_(stop, Wake{&thing}) {}
  bool ended() const noexcept override { return closed_.load(std::memory_order_relaxed) || stop_.stop_requested(); }

 private:
  struct Wake {
    Thing* thing;
    void operator()() const noexcept { thing->wake(); }
  };
  const std::atomic<bool>& closed_;
  const std::stop_token& stop_;
  std::stop_callback<Wake> wake_;
};

// `act(thing, wait)` of an object that is open; `what` it is called in errors. Null is one that was moved from.
template <class Thing, class Act>
auto with_thing(Closable<Thing>* state, const char* what, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(std::declval<Thing&>(), platform::WaitContext{})) {
  return or_out_of_memory([&]() -> decltype(act(std::declval<Thing&>(), platform::WaitContext{})) {
    const auto thing = state == nullptr ? nullptr : state->get();
    if (thing == nullptr) return closed_here(what);
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    UntilEnded<Thing> until(state->closed, *thing, stop);
    auto result = act(*thing, waiting(timeout, &until));
    const bool was_closed = !result && result.code() == Code::kInterrupted && !stop.stop_requested();
    if (was_closed) return closed_here(what);
    return result;
  });
}
// `read(thing)` of one that is open, or else 0.
template <class Thing, class Read>
std::uint64_t number_of(Closable<Thing>* state, Read read) noexcept {
  const auto thing = state == nullptr ? nullptr : state->get();
  return thing == nullptr ? 0 : read(*thing);
}

// A Message with the FrameBuilder that it writes to.
struct OwnedMessage {
  OwnedMessage(ArenaState& arena, bool allows_pickle) : message(builder, arena, allows_pickle) {}

  format::FrameBuilder builder{};
  Message message;
};

// The Item of a frame that many read. `block`, if that is valid, has it, and keeps what it refers to. `copied`: the
// item has memory of its own. Moves `block` into an Item that views it, and leaves it if there is no Item.
Result<Item> to_item(memory::Arena& arena, std::span<const std::byte> frame, memory::Lease& block,
                     endpoint::CopyPolicy policy);

// A lease that an object is to own. If `made()` is not called, the destructor returns it to where it came from.
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

// Where something new goes: the arena that was asked for, that of the process, or one of the name's. Throws BadResult.
std::shared_ptr<memory::Arena> home_for(const std::optional<Arena>& arena, const std::string& name);
// That name for it, or null for an empty one.
Result<std::shared_ptr<endpoint::Name>> name_for(const std::string& name, discovery::NamedKind kind,
                                                 const std::shared_ptr<memory::Arena>& arena, memory::BlockRef block);
// Throws BadResult for options of a name without one.
void check_named(const std::string& name, bool exist_ok);
// Of what is there already: kInvalid unless it is in the arena that was asked for, if one was, and `same` is ok.
Status check_known(const std::string& name, const std::optional<Arena>& asked,
                   const std::shared_ptr<memory::Arena>& arena, Status same);

// What a handle, or a name, leads to. What a handle leads to is in transit until note_arrival().
struct Found {
  std::shared_ptr<memory::Arena> arena;
  memory::BlockRef block;
  std::shared_ptr<endpoint::Name> name;
  std::uint64_t transfer = 0;

  void note_arrival() const noexcept { endpoint::end_transfer(*arena, transfer, name.get()); }
};
Result<Found> find_handle(std::span<const std::byte> handle);
Result<Found> find_handle(const std::string& text);
// kInvalid for something that is not `kind`, called `what`.
Result<Found> find_name(const std::string& name, discovery::NamedKind kind, const char* what,
                        const Timeout& timeout = std::chrono::nanoseconds(0));
// Opens the object that `options.name` names, for make_...() with exist_ok. kInvalid if it is of another kind or in
// another arena than the options ask for, or by `check(object)`.
template <class Thing, class Options, class Check>
Result<std::pair<std::shared_ptr<Thing>, std::shared_ptr<endpoint::Name>>> open_known(const Options& options,
                                                                                      discovery::NamedKind kind,
                                                                                      const char* what,
                                                                                      const Check& check) {
  auto found = find_name(options.name, kind, what);
  if (!found) return std::move(found).error();
  auto thing = Thing::open(found->arena, found->block, platform::WaitContext{});
  if (!thing) return std::move(thing).error();
  Status same = check_known(options.name, options.arena, found->arena, check(**thing));
  if (!same) return std::move(same).error();
  return std::pair(std::move(*thing), std::move(found->name));
}

// How objects of the public class Handle are found and made. `State::wrap(thing, name)` makes one.
template <class State, class Thing, class Handle>
struct Openable {
  static Result<Handle> open(Result<Found> found) {
    if (!found) return std::move(found).error();
    auto thing = Thing::open(found->arena, found->block, platform::WaitContext{});
    if (!thing) return std::move(thing).error();
    found->note_arrival();
    return State::wrap(std::move(*thing), std::move(found->name));
  }
  // Makes a new one with `terms`, or, with exist_ok, opens the one that has the name. Throws BadResult.
  template <class Options, class Terms>
  static Handle make(const Options& options, discovery::NamedKind kind, const char* what, const Terms& terms) try {
    check_named(options.name, options.exist_ok);
    const auto open_named = [&]() -> Result<Handle> {
      auto known = open_known<Thing>(options, kind, what, [&](const Thing& it) { return it.check_options(terms); });
      if (!known) return std::move(known).error();
      return State::wrap(std::move(known->first), std::move(known->second));
    };
    const auto make_new = [&]() -> Result<Handle> {
      const auto arena = home_for(options.arena, options.name);
      auto thing = Thing::create(arena, terms, platform::WaitContext{});
      if (!thing) return std::move(thing).error();
      auto name = name_for(options.name, kind, arena, (*thing)->block());
      if (!name) return std::move(name).error();
      return State::wrap(std::move(*thing), std::move(*name));
    };
    return endpoint::open_or_make(options.exist_ok, open_named, make_new).value();
  } catch (const std::bad_alloc&) {
    throw BadResult(out_of_memory());
  }
};
// In a message of Python's, of an object whose class is called `name` there, which is `what` in errors.
Result<Found> find_item(const Item& item, std::string_view name, const char* what);

}  // namespace shmtree::api
