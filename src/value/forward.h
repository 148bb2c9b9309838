// What was received, on its way into another message.
#pragma once

#include <vector>

#include "format/frame_builder.h"
#include "shmtree/value.h"
#include "value/codec.h"

namespace shmtree::value {

struct Tree;

// The Items that were moved into a value to send.
class MovedItems {
 public:
  explicit MovedItems(const Value& value) { find(value); }
  // How many of them are of that message.
  long of(const Tree& tree) const noexcept;

 private:
  void find(const Value& value);
  std::vector<const Item*> items_;  // sorted by message, each once
};

// Adds the node of the item, and all below it, to the frame, whatever kind they are. Arrays that `externals` takes go
// by reference. The item must live until the frame was written. kInvalid: deeper than kMaxDepth; kPickleRefused: a
// pickle, or a class or function that is no default factory, where `externals` takes none.
// `moved` are the Items that were moved into the same value; null when there are no others of its message.
Status add_forwarded(const Forward& forward, const MovedItems* moved, format::FrameBuilder& builder,
                     ExternalArrays* externals);

// Whether an Item that was moved has company: others of its message, which may have been moved into the same value.
bool has_company(const Forward& forward) noexcept;

}  // namespace shmtree::value
