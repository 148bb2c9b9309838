// The transfers of one message or handle: ends of channels and memory, with their names. If the message is not put, the
// destructor ends them. They belong to the process that began them, so a child that is forked meanwhile ends none of
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "channel/channel.h"
#include "endpoint/names.h"

namespace shmtree::endpoint {

class MessageTransfers {
 public:
  MessageTransfers() = default;
  MessageTransfers(const MessageTransfers&) = delete;
  MessageTransfers& operator=(const MessageTransfers&) = delete;
  ~MessageTransfers() { take_back(); }

  bool empty() const noexcept { return begun_ == nullptr; }
  // Records that the message is in that block, which this process is writing. The transfers end when it is freed.
  void carry(memory::Arena& arena, memory::BlockRef block) const noexcept;
  // Lets the transfers continue: the message is put.
  void keep() noexcept { begun_.reset(); }
  // Ends the transfers: the message is not put, or is encoded again.
  void take_back() noexcept {
    if (!empty()) end_all();
  }

  // Begins a transfer of an end, or of a block of memory that this process holds. `block` is packed; 0 stands for the
  // arena itself. If this thread is encoding a message, the transfer belongs to that message. `name`, unless null, is
  // kept alive until the transfer arrives. Returns the number of the transfer.
  static Result<std::uint64_t> begin(const std::shared_ptr<channel::Channel>& channel, channel::End end,
                                     const Name* name);
  static Result<std::uint64_t> begin(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                     const Name* name);

  // While this object exists, transfers that this thread begins belong to `transfers`.
  class Pickling {
   public:
    explicit Pickling(MessageTransfers* transfers) noexcept;
    ~Pickling();
    Pickling(const Pickling&) = delete;
    Pickling& operator=(const Pickling&) = delete;

   private:
    MessageTransfers* before_;
  };

 private:
  struct Begun {
    std::shared_ptr<memory::Arena> arena{};
    std::shared_ptr<channel::Channel> channel{};  // The end; null for a transfer of memory.
    std::uint64_t block = 0;                      // The block, for a transfer of memory.
    channel::End end = channel::End::kSending;
    std::uint64_t number = 0;
    memory::Identity giver = memory::kNoIdentity;
    std::shared_ptr<discovery::NameInTransit> name{};
    void take_back() const noexcept;
  };
  // Begins the transfer with `make`, and records it.
  template <class Make>
  static Result<std::uint64_t> note(Begun begun, const Name* name, Make make);

  void end_all() noexcept;

  std::unique_ptr<std::vector<Begun>> begun_;  // null if there are no transfers, as in most messages
};

// Ends the transfer of a loaded handle, after this process has attached to the object, and to its name if it has one.
void end_transfer(channel::Channel& channel, std::uint64_t number, channel::End end, Name* name) noexcept;
void end_transfer(memory::Arena& arena, std::uint64_t block, std::uint64_t number, Name* name) noexcept;

}  // namespace shmtree::endpoint
