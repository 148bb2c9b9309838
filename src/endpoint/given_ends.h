// Ends that are given away with a message: taken back unless the message is put. A child that is forked meanwhile takes
// back nothing: they are on their way with its parent's message.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "channel/channel.h"

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

  // Makes a grant, which is one of the message that this thread encodes, if it encodes one.
  static Result<std::uint64_t> grant(const std::shared_ptr<channel::Channel>& channel, channel::End end);

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
    std::shared_ptr<channel::Channel> channel;
    std::uint64_t grant;
    channel::End end;
    memory::Identity giver;
    void take_back() const noexcept {
      if (channel->arena()->current_identity() == giver) channel->membership().claim(grant, end);
    }
  };
  std::vector<Given> given_;
};

}  // namespace shmtree::endpoint
