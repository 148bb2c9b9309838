// What a message, or a handle, hands over: ends of channels and memory, with the names that they are known by. The
// transfers end at once unless the message is put. A child that is forked meanwhile ends none of them: they are its
// parent's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "channel/channel.h"
#include "endpoint/names.h"

namespace shmtree::endpoint {

class Transfers {
 public:
  Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  ~Transfers() { take_back(); }

  bool empty() const noexcept { return begun_.empty(); }
  // They go on: the message is put.
  void keep() noexcept { begun_.clear(); }
  // Ends them: the message is not put, or is encoded anew.
  void take_back() noexcept {
    for (const Begun& each : begun_) each.take_back();
    begun_.clear();
  }

  // Begins a transfer, as one of the message that this thread encodes, if it encodes one: of an end, or of a block of
  // memory (packed; 0 for the arena as such) that this process holds. The name goes with it, until it arrives; null for
  // none. Returns the number of the transfer.
  static Result<std::uint64_t> begin(const std::shared_ptr<channel::Channel>& channel, channel::End end,
                                     const Name* name);
  static Result<std::uint64_t> begin(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                     const Name* name);

  // While it exists the thread flattens an end, or pickles the whole, for the message of these.
  class Pickling {
   public:
    explicit Pickling(Transfers* transfers) noexcept;
    ~Pickling();
    Pickling(const Pickling&) = delete;
    Pickling& operator=(const Pickling&) = delete;

   private:
    Transfers* before_;
  };

 private:
  struct Begun {
    std::shared_ptr<memory::Arena> arena{};
    std::shared_ptr<channel::Channel> channel{};  // null for memory
    channel::End end = channel::End::kSending;
    std::uint64_t number = 0;
    memory::Identity giver = memory::kNobody;
    std::shared_ptr<discovery::NameInTransit> name{};
    void take_back() const noexcept;
  };
  // Begins it with `make`, and notes it.
  template <class Make>
  static Result<std::uint64_t> note(Begun begun, const Name* name, Make make);

  std::vector<Begun> begun_;
};

// Ends the transfer of a handle that was loaded: this process has what it led to, and the name, if it has one.
void end_transfer(channel::Channel& channel, std::uint64_t number, channel::End end, Name* name) noexcept;
void end_transfer(memory::Arena& arena, std::uint64_t number, Name* name) noexcept;

}  // namespace shmtree::endpoint
