/// @file
/// Ends and queues that a program in Python put into a message: `item["reply"].as<shmtree::Sender>()`.
///
/// Each call gives another handle of the end. It counts as on its way until it is first had, as long as its giver lives
/// and 60 s longer. Errors: kInvalid for another item; kNotFound when nobody has its channel any more, kClosed when it
/// comes so late that its stream is over. Thread safety: as of Item.
#pragma once

#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/queue.h"
#include "shmtree/result.h"

namespace shmtree {

/// A sender.
template <>
struct ItemAs<Sender> {
  static Result<Sender> make(const Item& item);
};
/// A receiver.
template <>
struct ItemAs<Receiver> {
  static Result<Receiver> make(const Item& item);
};
/// A queue, of any of its classes.
template <>
struct ItemAs<Queue> {
  static Result<Queue> make(const Item& item);
};

}  // namespace shmtree
