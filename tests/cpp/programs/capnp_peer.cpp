// Echoes Cap'n Proto messages from channel <requests> to <replies> with a changed `seq`.
//
//   capnp_peer <requests> <replies>
#include <messages.capnp.h>
#include <shmtree/capnp.h>

#include <chrono>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;

int main(int count, char** arguments) {
  if (count < 3) return 64;
  auto requests = shmtree::open_receiver(arguments[1]).value();
  auto replies = shmtree::open_sender(arguments[2]).value();
  for (const shmtree::Item& request : requests) {
    const shmtree::CapnpItem<Pose> pose = request["pose"].capnp<Pose>();
    shmtree::ArenaMessageBuilder builder(replies, 60s);
    builder.setRoot(*pose);
    builder.getRoot<Pose>().setSeq(pose->getSeq() + 1);
    replies.put<Pose>(builder, 60s).value();
  }
  return 0;
}
