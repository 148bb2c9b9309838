#include "bindings/endpoint/ring_end.h"

#include <cstring>
#include <new>
#include <vector>

#include "bindings/codec/decode.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/errors.h"
#include "bindings/objects/frame.h"
#include "endpoint/copy_policy.h"
#include "format/checked_frame.h"

namespace shmtree::python {

namespace py = pybind11;
using memory::Arena;

void set_ring_closed(const char* name, bool was_attached) {
  if (!was_attached) {
    PyErr_SetString(PyExc_TypeError,
                    "__init__() of this object was not called; a subclass must call super().__init__()");
  } else {
    PyErr_Format(error_types().channel_closed, "this %s was closed in this process", name);
  }
}

PyObject* RingHooks::raise(const Error& error) const {
  if (error.code == Code::kClosed || error.code == Code::kPeerDied) block_if_left_behind();
  const bool was_closed = error.code == Code::kInterrupted && self_->kind->closed(self_) && !PyErr_Occurred();
  if (!was_closed) return python::raise(error);
  self_->kind->set_closed(self_);
  return nullptr;
}

namespace {

// Pins the blocks that contain the views of a published message. A pinned block keeps the blocks that it refers to, so
// no lock is needed. Other processes read these blocks, so views must stay read-only.
class PublishedOwners final : public ViewOwners {
 public:
  PublishedOwners(Arena& arena, const memory::Lease& block) : arena_(arena) {
    if (!block.valid()) return;
    block_ = block.ref();
    referred_ = arena.blocks().referred_to_by(block_);
  }

  const std::vector<memory::BlockRef>& referred() const noexcept { return referred_; }
  // True if a block exists but could not be pinned, usually for lack of memory or address space.
  bool no_hold() const noexcept { return no_hold_; }

  PyObject* make(std::uint32_t block) override {
    auto lease = arena_.hold_referred(block == kOwnFrame ? block_ : referred_[block]);
    no_hold_ = !lease && lease.code() != Code::kNotFound;
    if (!lease) return raise(lease.error());
    PyObject* owner = new_received_owner(std::move(*lease), nullptr);
    if (owner) as_view_owner(owner)->writable = false;
    return owner;
  }

 private:
  Arena& arena_;
  memory::BlockRef block_{};
  std::vector<memory::BlockRef> referred_;
  bool no_hold_ = false;
};

// Attaches a copy of the frame to the current exception, if the frame stands alone.
void add_frame(std::span<const std::byte> bytes, const DecodeContext& context) {
  Ref exception = take_exception();
  format::CheckedFrame checked;
  const bool is_standalone = checked.load(bytes).ok() && checked.contents().is_standalone;
  Frame* frame = is_standalone ? new_frame(static_cast<std::size_t>(checked.contents().bytes)) : nullptr;
  if (frame) {
    std::memcpy(frame->data, bytes.data(), frame->size_bytes);
    frame->contents = checked.contents();
    frame->trusted = context.allow_pickle;
    PyObject_SetAttrString(exception.get(), "frame", Ref(reinterpret_cast<PyObject*>(frame)).get());
  }
  set_exception_again(std::move(exception));
}

// Decides whether to retry after a Python error, by the same rules as decode_incoming().
Retry retry_after(const DecodeContext& context, bool no_hold) noexcept {
  if (context.interrupted || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) return Retry::kInterrupted;
  const bool has_no_memory = no_hold || PyErr_ExceptionMatches(PyExc_MemoryError);
  return has_no_memory || !PyErr_ExceptionMatches(PyExc_Exception) ? Retry::kCounted : Retry::kNever;
}

PyObject* decoded(std::span<const std::byte> frame, DecodeContext& context) {
  PyObject* object = decode(frame, context);
  if (!object && PyErr_ExceptionMatches(error_types().incompatible_message)) add_frame(frame, context);
  return object;
}

}  // namespace

PyObject* decode_published(Arena& arena, std::span<const std::byte> frame, const memory::Lease& block, CopyPolicy copy,
                           bool allow_pickle, Retry* retry) try {
  DecodeContext context;
  context.copy = copy;
  context.allow_pickle = allow_pickle;
  context.for_channel = true;
  context.writable = false;
  context.tensor_views = copy == CopyPolicy::kNone ? TensorViews::kAll : TensorViews::kNone;
  PublishedOwners owners(arena, block);
  std::vector<ExternalBlock> externals;
  for (const auto& each : endpoint::referred_blocks(arena, owners.referred())) {
    externals.push_back({{const_cast<std::byte*>(each.data()), each.size()}, false});
  }
  context.externals = externals;
  context.owners = &owners;
  PyObject* object = decoded(frame, context);
  if (!object) *retry = retry_after(context, owners.no_hold());
  return object;
} catch (const std::bad_alloc&) {
  *retry = Retry::kCounted;
  return PyErr_Occurred() ? nullptr : PyErr_NoMemory();
}

PyObject* published_frame(Arena& arena, std::uint64_t number, std::span<const std::byte> frame,
                          const memory::Lease& block) {
  const auto raw = endpoint::seen_frame(
      arena,
      {.ticket = number, .put_ns = 0, .frame = frame, .block = block.valid() ? block.ref() : memory::BlockRef{}});
  if (!raw) return raise_from_frame(raw.error());
  return Py_BuildValue("(Ky#)", static_cast<unsigned long long>(number),
                       reinterpret_cast<const char*>(raw->bytes.data()), static_cast<Py_ssize_t>(raw->bytes.size()));
}

py::tuple progress_of(const broadcast::Ring& ring) {
  py::list publishers, readers;
  for (const int pid : ring.publishers()) publishers.append(pid);
  for (const auto& one : ring.positions()) readers.append(py::make_tuple(one.cursor, one.pid, one.next));
  return py::make_tuple(ring.tail(), publishers, readers, ring.check_publishers().ok());
}

}  // namespace shmtree::python
