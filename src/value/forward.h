// What was received, on its way into another message.
#pragma once

#include "format/frame_builder.h"
#include "shmtree/value.h"
#include "value/codec.h"

namespace shmtree::value {

// Adds the node of the item, and all below it, to the frame, whatever kind they are. Arrays that `externals` takes go
// by reference. The item must live until the frame was written. kInvalid: deeper than kMaxDepth; kPickleRefused: a
// pickle, or a class or function that is no default factory, where `externals` takes none.
Status add_forwarded(const Forward& forward, format::FrameBuilder& builder, ExternalArrays* externals);

}  // namespace shmtree::value
