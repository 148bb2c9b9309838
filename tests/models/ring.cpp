// A full ring of a channel: the sender reuses the slot that the receiver reads. The receiver gets the messages that
// were put, in order, and no slot is written while it is read.
#include "channel_ring.h"

namespace {

using namespace model;

constexpr std::uint64_t kMessages = 2;
constexpr int kCalls = 3;

void send() {
  std::uint64_t sent = 0;
  for (int call = 0; call < kCalls && sent < kMessages; ++call) {
    OwnedBlock spare;
    const RingTail::Space space = put(sent, spare);
    MODEL_ASSERT((space == RingTail::Space::kYes || space == RingTail::Space::kFull) &&
                 "a sender finds a ring damaged");
    if (space == RingTail::Space::kYes) ++sent;
  }
}

void receive_all() {
  receive(kMessages, kCalls);
}

}  // namespace

void model::on_free(BlockId) {}

int main() {
  set_up_channel(1);
  model::in_threads<send, receive_all>();
}
