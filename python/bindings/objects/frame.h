// shmtree.Frame: one encoded value. It comes from pack(), from a channel, or from a pickle.
#pragma once

#include <cstddef>
#include <span>

#include "bindings/cpython/python_api.h"
#include "endpoint/frames.h"

namespace shmtree::python {

// Read-only. The bytes were checked, or written here, when the frame was made, so `contents` is known. Other processes
// may write to the memory below it; code that reads the bytes checks them again.
struct Frame {
  PyObject_HEAD std::byte* data;
  std::size_t size_bytes;
  format::FrameContents contents;
  // True if pickles in the frame may be loaded: this process wrote it, or the senders of a channel that accepts pickles
  // did.
  bool trusted;
  bool known_portable;  // no value in it depends on this machine; covers its pickles too
  // True for a message. Its handles may be opened.
  bool from_channel;
  PyObject* owner;     // keeps the memory; null if the frame frees it with std::free
  PyObject* delivery;  // the delivery of a message that was taken; otherwise null
  PyObject* weakrefs;
};

// Creates the type and adds it to the module. Returns false with a Python error set.
bool init_frame(PyObject* module);

// Makes a trusted frame of `size_bytes` for the caller to fill. Returns null with MemoryError set.
Frame* new_frame(std::size_t size_bytes);
// Makes the frame of a message, with the reference that keeps its memory. Returns null with a Python error set.
Frame* new_frame(endpoint::RawFrame&& raw);

bool is_frame(PyObject* object) noexcept;
inline Frame* as_frame(PyObject* object) noexcept {
  return reinterpret_cast<Frame*>(object);
}
inline std::span<const std::byte> frame_bytes(PyObject* frame) noexcept {
  return {as_frame(frame)->data, as_frame(frame)->size_bytes};
}

}  // namespace shmtree::python
