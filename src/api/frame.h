// What a Frame of the public API stands for.
#pragma once

#include <memory>
#include <utility>

#include "api/state.h"
#include "endpoint/frames.h"
#include "shmtree/frame.h"

namespace shmtree {

namespace detail {

struct FrameState {
  endpoint::RawFrame raw{};
  bool known_portable = false;  // what is in its pickles, too
};

struct FrameAccess {
  static Frame make(std::shared_ptr<const FrameState> state) noexcept { return Frame(std::move(state)); }
  // Null for none.
  static const std::shared_ptr<const FrameState>& of(const Frame& frame) noexcept { return frame.state_; }
  // Null for bytes, which are these then.
  static const Frame* of(const FrameSource& source) noexcept { return source.frame_; }
  static std::span<const std::byte> bytes(const FrameSource& source) noexcept { return source.bytes_; }
};

}  // namespace detail
}  // namespace shmtree
