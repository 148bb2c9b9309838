// shmtree.Frame: an encoded value that stands alone, as pack() makes it, as it was taken from a channel, or as it came
// by a pickle.
#pragma once

#include <cstddef>
#include <span>

#include "bindings/cpython/python_api.h"
#include "endpoint/frames.h"

namespace shmtree::python {

// Read-only. Its bytes were checked, or written here, when it was made; so its contents are known. Others may write
// into what it lies in: who reads the bytes checks them again.
struct Frame {
  PyObject_HEAD std::byte* data;
  std::size_t size_bytes;
  format::FrameContents contents;
  // Whoever wrote it may have pickles loaded here: this process, or the senders of a channel that takes pickles.
  bool trusted;
  bool known_portable;  // what is in its pickles, too
  bool from_channel;    // a message: what handles lead to may be opened
  PyObject* owner;      // keeps the memory; null for memory of std::free
  PyObject* delivery;   // of a message that was taken; null for others
  PyObject* weakrefs;
};

// Creates the type and adds it to the module. False with a Python error set.
bool init_frame(PyObject* module);

// A frame of so many bytes for the caller to fill; trusted. Null with MemoryError set.
Frame* new_frame(std::size_t size_bytes);
// One of a message, with what keeps its memory. Null with a Python error set.
Frame* new_frame(endpoint::RawFrame&& raw);

bool is_frame(PyObject* object) noexcept;
inline Frame* as_frame(PyObject* object) noexcept {
  return reinterpret_cast<Frame*>(object);
}
inline std::span<const std::byte> frame_bytes(PyObject* frame) noexcept {
  return {as_frame(frame)->data, as_frame(frame)->size_bytes};
}

}  // namespace shmtree::python
