#include "endpoint/channels.h"

namespace shmtree::endpoint {

using channel::Channel;

Result<Known<Channel>> make_channel(const ObjectRequest& request, channel::ChannelOptions options) {
  options.is_named = request.name.has_value();
  options.allow_pickle = request.allows_pickle();
  if (request.kind == discovery::NamedKind::kQueue) {
    if (options.ending == channel::Ending::kEach) {
      return Error{Code::kInvalid, "on_peer_death is 'each'; it must be 'wait' or 'raise'"};
    }
    options.ending = options.ending == channel::Ending::kWait ? channel::Ending::kNever : channel::Ending::kQueueRaise;
  }
  return make_object<Channel>(request, {platform::Deadline::after_ns(Channel::kMaxCreateNs)}, options);
}

}  // namespace shmtree::endpoint
