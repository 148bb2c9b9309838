// The names that this process takes part in: one part in each, however many of its objects keep it, and one for each
// forked child, which has them all.
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

// As Name::create() and Name::open(). Whoever lets go of the last of them ends the process's part.
Result<std::shared_ptr<Name>> create_name(const std::string& name, const discovery::NamedThing& thing);
Result<std::shared_ptr<Name>> open_name(const std::string& name,
                                        std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
                                        platform::WaitHooks* hooks = nullptr);
// open(), where `exist_ok` says so and there is something of that name, or else make(), which makes the name. Of
// processes that do this at once one makes it, and the others open what it made.
template <class Open, class Make>
auto open_or_make(bool exist_ok, Open open, Make make) -> decltype(make()) {
  // The last process that has the name may exit between the two calls.
  constexpr int kMaxTurns = 16;
  for (int turn = 0;; ++turn) {
    if (exist_ok) {
      auto known = open();
      if (known || known.code() != Code::kNotFound) return known;
    }
    auto made = make();
    if (made || !exist_ok || made.code() != Code::kExists || turn == kMaxTurns) return made;
  }
}
// Takes part in the name that came with the handle of something in `arena`, by its path. Null for an empty path, and
// when the name is no longer the arena's: the arena does without. `part`: what the parent of this process took for it.
std::shared_ptr<Name> join_name(const std::string& path, const std::shared_ptr<memory::Arena>& arena,
                                platform::UniqueFd part = {});
// Keeps the name for a transfer to another process (discovery::NameInTransit). Null if that cannot be noted: the
// transfer goes on without the name.
std::shared_ptr<discovery::NameInTransit> keep_name_for(const Name& name, std::uint64_t transfer) noexcept;
// The process is about to exit.
void leave_names() noexcept;

}  // namespace shmtree::endpoint
