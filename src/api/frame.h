// State behind a Frame of the public API.
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
  bool known_portable = false;  // True if the pickles in the frame were checked as well.
};

struct FrameAccess {
  static Frame make(std::shared_ptr<const FrameState> state) noexcept { return Frame(std::move(state)); }
  // Null for an empty Frame.
  static const std::shared_ptr<const FrameState>& of(const Frame& frame) noexcept { return frame.state_; }
  // Null if the source consists of bytes, which bytes() returns.
  static const Frame* of(const FrameSource& source) noexcept { return source.frame_; }
  static std::span<const std::byte> bytes(const FrameSource& source) noexcept { return source.bytes_; }
};

}  // namespace detail
}  // namespace shmtree
