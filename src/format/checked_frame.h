// A frame that is not decoded: whether it is sound, and what is in it.
//
// load() makes every check of the tree that a reader makes, node by node, and nothing of what it reads. What was
// checked is a private copy of the metadata: the columns that whole() has lead into that, so others who write into the
// frame meanwhile change numbers, and nothing else.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "format/frame_reader.h"

namespace shmtree::format {

// Bytes of other blocks, by the references of the frame's external ranges.
using Blocks = std::span<const std::span<const std::byte>>;

// Whether instances of a registered class are handles: of what lies in one process's memory, or on its devices. They
// mean nothing on another machine, and lead one receiver of the message to what they stand for.
constexpr bool is_handle(std::string_view registered_class) noexcept {
  return registered_class.starts_with("shmtree:") || registered_class == "shmtree._leaves:DeviceLeaf";
}

// What somebody who does not decode a frame has to know of it.
struct FrameContents {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::uint64_t bytes = 0;     // of the frame; there may be more behind it
  bool has_pickle = false;     // of which nobody knows what is in it
  bool has_global = false;     // a class or function as a value: loading it takes as much trust as a pickle
  std::size_t handle = kNone;  // the position of the first node that is a handle
  bool stands_alone = true;    // it has no external ranges

  bool needs_pickle() const noexcept { return has_pickle || has_global; }
  bool has_handle() const noexcept { return handle != kNone; }
};

class CheckedFrame {
 public:
  // Once. `frame` may be longer than the frame in it. kCorrupt with what is wrong, and at which node; kIncompatible for
  // a frame of another version; kOutOfSharedMemory.
  Status load(std::span<const std::byte> frame, Blocks blocks = {});

  const FrameContents& contents() const noexcept { return contents_; }
  // The class of the first handle; empty without one.
  std::string_view handle_class() const noexcept { return handle_class_; }

  // All columns, as if nothing of them had been read; and the frame's own buffers.
  const ColumnCursors& whole() const noexcept { return whole_; }
  const FrameReader& reader() const noexcept { return reader_; }

 private:
  FrameReader reader_;
  ColumnCursors whole_{};
  FrameContents contents_;
  std::string_view handle_class_{};  // in the reader
};

}  // namespace shmtree::format
