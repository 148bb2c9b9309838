// Validates a frame without decoding it, and reports what it contains.
//
// load() makes the same checks of the tree as a reader, node by node, but builds no objects. It checks a private copy
// of the metadata, into which the columns of whole() point. So a process that writes into the frame meanwhile can
// change only the bytes of buffers. Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "format/frame_reader.h"

namespace shmtree::format {

// Returns true if instances of the registered class are handles to something in one process's memory or on its devices.
// Such a handle is meaningless on another machine, and only one receiver of the message can use it.
constexpr bool is_handle(std::string_view registered_class) noexcept {
  return registered_class.starts_with("shmtree:") || registered_class == "shmtree._leaves:DeviceLeaf";
}

// Facts about a frame that a process needs to know if it does not decode it.
struct FrameContents {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::uint64_t bytes = 0;     // Size of the frame; the given memory may be longer.
  bool has_pickle = false;     // A pickle: its contents are opaque.
  bool has_global = false;     // A class or function as a value; loading it needs as much trust as a pickle.
  std::size_t handle = kNone;  // Position of the first node that is a handle.
  bool is_standalone = true;   // True if the frame has no external ranges.

  bool needs_pickle() const noexcept { return has_pickle || has_global; }
  bool has_handle() const noexcept { return handle != kNone; }
};

class CheckedFrame {
 public:
  // Call once. `frame` may be longer than the frame at its start. Fails with kCorrupt (the message says what is wrong,
  // and at which node), kIncompatible (another frame version) or kOutOfSharedMemory.
  Status load(std::span<const std::byte> frame, Blocks blocks = {});

  const FrameContents& contents() const noexcept { return contents_; }
  // Class of the first handle; empty if there is none.
  std::string_view handle_class() const noexcept { return handle_class_; }

  // All columns from their start, and the reader, which has the frame's own buffers.
  const ColumnCursors& whole() const noexcept { return whole_; }
  const FrameReader& reader() const noexcept { return reader_; }

 private:
  FrameReader reader_;
  ColumnCursors whole_{};
  FrameContents contents_;
  std::string_view handle_class_{};  // points into reader_
};

}  // namespace shmtree::format
