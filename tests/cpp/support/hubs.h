// Hubs of tests, and the texts that other processes sent to them.
#pragma once

#include <array>
#include <vector>

#include "platform/wake_pipe.h"
#include "support/catch2.h"

namespace shmtree::test {

using platform::WakePipe;
using platform::WakeText;

inline WakePipe new_hub() {
  return WakePipe::open(platform::WakeKind::kTexts).value();
}
// Returns the texts that arrived since the last call.
inline std::vector<WakeText> told(const WakePipe& hub) {
  std::array<WakeText, 8> texts{};
  std::size_t received = 0;
  bool damaged = false;
  hub.receive(texts, received, damaged);
  REQUIRE_FALSE(damaged);
  return {texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(received)};
}

}  // namespace shmtree::test
