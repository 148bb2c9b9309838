// Three processes of a Broadcast in which no block is freed: two publishers and a reader.
#pragma once

#include "broadcast_ring.h"

namespace model {

constexpr std::uint32_t kFirst = 0, kSecond = 1, kReader = 2;

inline void set_up_broadcast() {
  for (const std::uint32_t slot : {kFirst, kSecond, kReader}) {
    set_up(slot);
    set_up_ring(slot, broadcast::kBroadcastUse);
  }
}

}  // namespace model

void model::on_free(BlockId) {}
