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

// Options of a new channel as users of both languages give them.
struct ChannelRequest {
  discovery::NamedKind kind = discovery::NamedKind::kChannel;
  // For a queue, `ending` is kRaise or kWait too; make_channel() converts it. It ignores `allow_pickle` and `is_named`.
  channel::ChannelOptions options{};
  std::optional<std::string> name{};
  std::shared_ptr<memory::Arena> arena{};  // Null: the channel gets an arena of its own.
  std::optional<bool> allow_pickle{};      // By default, only channels without a name allow pickles.
  bool exist_ok = false;                   // Opens the channel of that name if there is one.
};

// Makes a channel. Returns kInvalid for options that do not fit together or are out of range, and for an existing
// channel with other options or in another arena. Returns kExists if the name is in use and `exist_ok` is false.
Result<KnownChannel> make_channel(const ChannelRequest& request);

}  // namespace shmtree::endpoint
