// Small messages of a Broadcast, which are stored in its entries (Ring::write, Ring::read: src/broadcast/ring.cpp). A
// reader copies entries while publishers of two processes overwrite them. It gets the message that it asked for, or
// none.
#include "broadcast_processes.h"

namespace {

using namespace model;

void read(std::uint64_t ticket) {
  broadcast::Incoming message;
  if (!rings[kReader]->read(ticket, message)) return;
  const auto* value = reinterpret_cast<const std::uint64_t*>(message.small);
  MODEL_ASSERT(message.bytes == 16 && value[0] == value[1] && "a reader accepts a torn copy");
  MODEL_ASSERT(value[0] == 100 + ticket && "a reader takes a message for another");
}

void read_both() {
  read(1);
  read(0);
}

}  // namespace

int main() {
  set_up_broadcast();
  put_small(kFirst);
  model::in_threads<put_small_locked<kFirst>, put_small_locked<kSecond>, read_both>();
}
