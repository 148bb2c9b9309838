// The parts that every way to use a channel builds on. Each part uses only the parts before it.
#pragma once

#include "channel/acks.h"
#include "channel/membership.h"

namespace shmtree::channel {

struct Parts {
  Parts(std::shared_ptr<Arena> arena, const Control& of) : control(of), head(of, std::move(arena)) {}

  const Control control;
  RingTail tail{control};
  RingHead head;
  Records records{control};
  Unreturned unreturned{control};
  Ends ends{control, records};
  Watchers watchers{control, tail, head, unreturned, ends};
  Returns returns{control, records, unreturned, watchers};
  Membership membership{control, ends, watchers, returns};
  Acks acks{control, records, ends};  // last, since every put writes it and the other parts are only read
};

}  // namespace shmtree::channel
