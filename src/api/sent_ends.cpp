#include "shmtree/sent_ends.h"

#include "api/state.h"

namespace shmtree {

using api::ChannelState;
using channel::End;

Result<Sender> ItemAs<Sender>::make(const Item& item) {
  return ChannelState::made<Sender>([&] { return ChannelState::open_item(item, "shmtree:Sender", End::kSending); });
}
Result<Receiver> ItemAs<Receiver>::make(const Item& item) {
  return ChannelState::made<Receiver>(
      [&] { return ChannelState::open_item(item, "shmtree:Receiver", End::kReceiving); });
}

Result<Queue> ItemAs<Queue>::make(const Item& item) {
  return Queue::with_sender(or_out_of_memory([&]() -> Result<std::shared_ptr<ChannelState>> {
    for (const char* kind : {"shmtree:Queue", "shmtree:JoinableQueue", "shmtree:SimpleQueue"}) {
      if (item.class_name() == kind) return ChannelState::open_item(item, kind, End::kReceiving, true);
    }
    return item.mismatch("a queue");
  }));
}

}  // namespace shmtree
