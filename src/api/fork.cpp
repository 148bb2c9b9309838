// Implements keep_only().
#include "shmtree/fork.h"

#include <algorithm>

#include "api/state.h"

namespace shmtree::detail {

using endpoint::Call;

void keep_only(std::span<const api::ChannelState* const> kept) {
  for (const auto& state : api::ChannelState::all().all()) {
    if (!state->is_inherited()) continue;
    if (std::ranges::find(kept, state.get()) != kept.end()) {
      const Call call(*state);
      state->attach_again(state->end).ok();  // If the stream has ended, the next use returns the error.
      state->note_given();
    } else {
      state->make_passive(state->end);
    }
  }
}

}  // namespace shmtree::detail
