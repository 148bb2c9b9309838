// Channels as programs make them, and find them by name.
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

// What is known by `name`. kInvalid: something that is no `kind`; else as open_name().
Result<KnownChannel> open_channel(const std::string& name, discovery::NamedKind kind,
                                  std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0));

// A new channel in `arena`, or in one of its own where that is null, that is known by `name`. With `exist_ok` the one
// that is known by it already, in which this process then takes part: kInvalid when that has other options, or lies in
// another arena. Without, kExists.
Result<KnownChannel> make_channel(const std::string& name, discovery::NamedKind kind,
                                  std::shared_ptr<memory::Arena> arena, const channel::ChannelOptions& options,
                                  bool exist_ok);

}  // namespace shmtree::endpoint
