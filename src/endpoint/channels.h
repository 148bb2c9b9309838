// Makes channels, and opens them by name.
//
// Thread safety: every function may be called from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "channel/channel.h"
#include "endpoint/names.h"

namespace shmtree::endpoint {

struct KnownChannel {
  std::shared_ptr<channel::Channel> channel;
  std::shared_ptr<Name> name;
};

// Opens the channel named `name`. kInvalid: the name belongs to something other than `kind`. Other errors are those of
// open_name().
Result<KnownChannel> open_channel(const std::string& name, discovery::NamedKind kind,
                                  std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0));

// Makes a channel named `name` in `arena`, or in an arena of its own if that is null. With `exist_ok`, opens an
// existing channel of that name instead. Returns kInvalid if that channel has other options, or is in another arena.
// Without `exist_ok`, returns kExists.
Result<KnownChannel> make_channel(const std::string& name, discovery::NamedKind kind,
                                  std::shared_ptr<memory::Arena> arena, const channel::ChannelOptions& options,
                                  bool exist_ok);

}  // namespace shmtree::endpoint
