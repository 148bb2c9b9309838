// What is given away with a message, or by a handle: ends of channels, and what lies in memory, with the names that
// they are known by. All of it is taken back unless the message is put. A child that is forked meanwhile takes back
// nothing: it is on its way with its parent's message.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "channel/channel.h"
#include "endpoint/names.h"

namespace shmtree::endpoint {

class GivenEnds {
 public:
  GivenEnds() = default;
  GivenEnds(const GivenEnds&) = delete;
  GivenEnds& operator=(const GivenEnds&) = delete;
  ~GivenEnds() { take_back(); }

  bool empty() const noexcept { return given_.empty(); }
  // They are on their way now.
  void keep() noexcept { given_.clear(); }
  // They are not: the message is not put, or is encoded anew.
  void take_back() noexcept {
    for (const Given& each : given_) each.take_back();
    given_.clear();
  }

  // Makes a grant, which is one of the message that this thread encodes, if it encodes one: of an end, or of a block of
  // memory (packed; 0 for the arena as such) that this process holds. `name`: what is known by that goes with it, and
  // so does the name until it arrives; null for none.
  static Result<std::uint64_t> grant(const std::shared_ptr<channel::Channel>& channel, channel::End end,
                                     const Name* name);
  static Result<std::uint64_t> grant(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                     const Name* name);

  // While it is there the thread flattens an end, or pickles the whole, for the message of these.
  class Pickling {
   public:
    explicit Pickling(GivenEnds* ends) noexcept;
    ~Pickling();
    Pickling(const Pickling&) = delete;
    Pickling& operator=(const Pickling&) = delete;

   private:
    GivenEnds* before_;
  };

 private:
  struct Given {
    std::shared_ptr<memory::Arena> arena{};
    std::shared_ptr<channel::Channel> channel{};  // null for memory
    channel::End end = channel::End::kSending;
    std::uint64_t grant = 0;
    memory::Identity giver = memory::kNobody;
    std::shared_ptr<discovery::GivenName> name{};
    void take_back() const noexcept;
  };
  // Makes it with `make`, and notes it.
  template <class Make>
  static Result<std::uint64_t> note(Given given, const Name* name, Make make);

  std::vector<Given> given_;
};

// What came with a handle has arrived, and this process has it and its name, if it has one.
void claim(channel::Channel& channel, std::uint64_t grant, channel::End end, Name* name) noexcept;
void claim(memory::Arena& arena, std::uint64_t grant, Name* name) noexcept;

}  // namespace shmtree::endpoint
