/// @file
/// Opens ends and queues that a Python program has put into a message: `item["reply"].as<shmtree::Sender>()`.
///
/// Each call returns a new handle of the end. The end is in transit until the first call, or until 60 s after the
/// process that sent it has exited.
///
/// Errors: kInvalid for another item, kNotFound if no process has the channel any more, and kClosed if the stream has
/// ended in the meantime.
///
/// Thread safety: that of Item.
#pragma once

#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/queue.h"

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
