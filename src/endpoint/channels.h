// Makes channels.
//
// Thread safety: every function may be called from any thread.
#pragma once

#include "channel/channel.h"
#include "endpoint/shared_objects.h"

namespace shmtree::endpoint {

// Makes the channel of a pair or queue. For a queue, `options.ending` is also kRaise or kWait, which this function
// converts to the endings of queues. It ignores `options.allow_pickle` and `options.is_named`. Returns kInvalid for
// options that do not fit together or are out of range. Other errors are those of make_object().
Result<Known<channel::Channel>> make_channel(const ObjectRequest& request, channel::ChannelOptions options);

}  // namespace shmtree::endpoint
