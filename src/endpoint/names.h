// The names to which this process is attached. It attaches once to each name; all its objects share that Name. A forked
// child attaches to all names of its parent.
//
// Thread safety: every function may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "discovery/name_in_transit.h"
#include "discovery/names.h"

namespace shmtree::endpoint {

using discovery::Name;

// See Name::create() and Name::open(). Releasing the last reference detaches this process from the name.
Result<std::shared_ptr<Name>> create_name(const std::string& name, const discovery::NamedObject& object);
Result<std::shared_ptr<Name>> open_name(const std::string& name,
                                        std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
                                        platform::WaitHooks* hooks = nullptr);
// Does the same. Returns kInvalid if the name belongs to an object of another kind.
Result<std::shared_ptr<Name>> open_known(const std::string& name, discovery::NamedKind kind,
                                         std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
                                         platform::WaitHooks* hooks = nullptr);
// Returns the kind with its article, for an error message.
const char* in_sentence(discovery::NamedKind kind) noexcept;
// Returns open() if `exist_ok` is set and the name exists; otherwise make(), which makes the name. If several processes
// call this at once, one makes the object and the others open it.
template <class Open, class Make>
auto open_or_make(bool exist_ok, Open open, Make make) -> decltype(make()) {
  // Tries again, because the last process that has the name may exit between the two calls.
  constexpr int kMaxTurns = 16;
  for (int turn = 0;; ++turn) {
    if (exist_ok) {
      auto opened = open();
      if (opened || opened.code() != Code::kNotFound) return opened;
    }
    auto created = make();
    if (created || !exist_ok || created.code() != Code::kExists || turn == kMaxTurns) return created;
  }
}
// Attaches to the name at `path`, which came with a handle of something in `arena`. Returns null for an empty path, and
// if the name does not belong to the arena any more; the arena then stays without a name. `part`: the part of
// the name's file that the parent of this process took for it.
std::shared_ptr<Name> join_name(const std::string& path, const std::shared_ptr<memory::Arena>& arena,
                                platform::UniqueFd part = {});
// Keeps the name alive for a transfer to another process (discovery::NameInTransit). Returns null if that cannot be
// recorded; the transfer then continues without the name.
std::shared_ptr<discovery::NameInTransit> keep_name_for(const Name& name, std::uint64_t transfer) noexcept;
// Call this when the process is about to exit.
void leave_names() noexcept;

}  // namespace shmtree::endpoint
