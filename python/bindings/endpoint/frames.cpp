#include "bindings/endpoint/frames.h"

#include <utility>

#include "bindings/codec/decode.h"
#include "bindings/codec/describe.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/incoming.h"
#include "bindings/endpoint/spans.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"
#include "endpoint/receive.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;

// --- Putting ---------------------------------------------------------------------------------------------------------

// The argument of one call: a Frame, or any buffer that contains a frame.
struct FrameArgument {
  std::span<const std::byte> bytes{};
  format::FrameContents contents{};
  bool known_portable = false;
  Py_buffer buffer{};

  FrameArgument() = default;
  FrameArgument(const FrameArgument&) = delete;
  FrameArgument& operator=(const FrameArgument&) = delete;
  ~FrameArgument() {
    if (buffer.obj) PyBuffer_Release(&buffer);
  }
  // Returns false with a Python error set.
  bool take(PyObject* object) {
    if (is_frame(object)) {
      bytes = frame_bytes(object);
      contents = as_frame(object)->contents;
      known_portable = as_frame(object)->known_portable;
      return true;
    }
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) != 0) return false;
    const std::span<const std::byte> all(static_cast<const std::byte*>(buffer.buf),
                                         static_cast<std::size_t>(buffer.len));
    format::CheckedFrame checked;
    const Status sound = checked.load(all);
    if (!sound.ok()) return raise_from_frame(sound.error()), false;
    contents = checked.contents();
    bytes = all.first(static_cast<std::size_t>(contents.bytes));
    return true;
  }
};

// Adds the path of the frame's first handle to the start of the current exception's message.
void add_path(std::span<const std::byte> frame, const format::FrameContents& contents) {
  if (!contents.has_handle()) return;
  const std::optional<std::string> found = facts_of_node(frame, contents.handle).path;
  const Ref path(found ? PyUnicode_DecodeUTF8(found->data(), static_cast<Py_ssize_t>(found->size()), "replace")
                       : nullptr);
  Ref exception = take_exception();
  if (path && PyUnicode_GET_LENGTH(path.get()) != 0) {
    PyErr_Format(type_object(Py_TYPE(exception.get())), "%U: %S", path.get(), exception.get());
  } else {
    set_exception_again(std::move(exception));
  }
}

bool may_go(EndObject* self, std::span<const std::byte> bytes, const format::FrameContents& contents,
            bool known_portable, const endpoint::Terms& terms) {
  const Status may = endpoint::check_may_go(contents, terms, known_portable);
  if (may.ok()) {
    if (contents.has_pickle) self->pickled.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  raise(may.error());
  if (may.code() == Code::kPickleRefused) {
    name_refuser(self->kind->refuser(self));
  } else {
    add_path(bytes, contents);
  }
  return false;
}

endpoint::Terms terms_of(const Endpoint& self) noexcept {
  const Channel& channel = self.port.channel();
  return {.allow_pickle = self.allow_pickle && channel.allows_pickle(), .portable = channel.is_portable()};
}

PyObject* put_frame(PyObject* object, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<3> kSignature{"put_frame", {"buffer", "block", "timeout"}, 3, 1};
  PyObject* given[3];
  Deadline deadline;
  if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(given[1], given[2], &deadline)) {
    return nullptr;
  }
  const Span span("shmtree.put_frame");
  Endpoint* const self = as_endpoint(object);
  FrameArgument frame;
  if (!frame.take(given[0])) return nullptr;
  const endpoint::Call call(self->port, End::kSending);
  Channel* channel = begin_sending(self);
  if (!channel || !may_go(self, frame.bytes, frame.contents, frame.known_portable, terms_of(*self))) return nullptr;
  EndHooks hooks(self, End::kSending);
  return ticket_or_error(self, hooks,
                         endpoint::put(*channel, endpoint::WholeFrame(frame.bytes), {deadline, &hooks, &self->spin}));
}

// --- Taking ----------------------------------------------------------------------------------------------------------

// Collects the frames of take_frames().
class Frames {
 public:
  using Object = Ref;
  Frames(Endpoint* self, EndHooks* hooks, PyObject* list, Py_ssize_t most)
      : self_(self), hooks_(hooks), list_(list), most_(most) {}

  Ref decode(Channel& channel, channel::Incoming& message, bool* may_retry) {
    auto raw = endpoint::raw_frame(*channel.arena(), message, hooks_);
    Frame* frame = nullptr;
    if (!raw) {
      raise_from_frame(raw.error());
      if (PyErr_ExceptionMatches(error_types().corrupt_message)) add_to_exception("ticket", message.ticket());
      *may_retry = raw.code() == Code::kOutOfSharedMemory;
    } else {
      frame = new_frame(std::move(*raw));
      *may_retry = frame == nullptr;
    }
    if (*may_retry) message.set_not_built();
    if (!frame) return Ref();
    frame->trusted = self_->allow_pickle && channel.allows_pickle();
    frame->known_portable = channel.was_always_portable();
    return Ref(reinterpret_cast<PyObject*>(frame));
  }
  Ref failed(const Error& error) { return Ref(raise_waited(self_, *hooks_, error)); }
  bool wants_more() const noexcept { return PyList_GET_SIZE(list_) < most_ && !self_->port.closed(End::kReceiving); }
  // Returns false with a Python error set; the message is nacked then.
  bool add(Ref frame, channel::Delivery delivery) {
    as_frame(frame.get())->delivery = new_delivery(std::move(delivery));
    return as_frame(frame.get())->delivery && PyList_Append(list_, frame.get()) == 0;
  }
  void defer(const Error& error) { defer_error(self_, error); }
  void defer(const Ref&, bool may_retry) { defer_failed_build(self_, may_retry); }

 private:
  Endpoint* self_;
  EndHooks* hooks_;
  PyObject* list_;
  Py_ssize_t most_;
};

PyObject* take_frames(PyObject* object, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"take_frames", {"n", "timeout"}, 2, 1};
  PyObject* given[2];
  Deadline deadline;
  Py_ssize_t most = 0;
  if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline) ||
      !parse_count(given[0], &most)) {
    return nullptr;
  }
  const Span span("shmtree.take_frames");
  Endpoint* const self = as_endpoint(object);
  const endpoint::Call call(self->port);
  Ref list(PyList_New(0));
  Channel* channel = list ? begin_receiving(self) : nullptr;
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kReceiving);
  Frames frames(self, &hooks, list.get(), most);
  if (!endpoint::take_first(frames, *channel, {deadline, &hooks, &self->spin})) return nullptr;
  endpoint::take_rest(frames, *channel);
  return list.release();
}

// Returns the messages that a killed process left to its successor. Nacks a message that cannot be read any more.
PyObject* inherited_frames(PyObject* object, PyObject*) {
  return with_open(object, End::kReceiving, [object](Channel& channel) -> PyObject* {
    Endpoint* self = as_endpoint(object);
    EndHooks hooks(self, End::kReceiving);
    auto found = channel.inherited({Deadline::never(), &hooks});
    if (!found) return raise_waited(self, hooks, found.error());
    Ref list(PyList_New(0));
    if (!list) return nullptr;
    Frames frames(self, &hooks, list.get(), 0);
    for (channel::Delivery& delivery : *found) {
      bool may_retry = false;
      Ref frame = frames.decode(channel, delivery.message(), &may_retry);
      if (!frame) {
        PyErr_Clear();
      } else if (!frames.add(std::move(frame), std::move(delivery))) {
        return nullptr;
      }
    }
    return list.release();
  });
}

const PyMethodDef putting[] = {
    {"put_frame", as_method<put_frame>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

const PyMethodDef taking[] = {
    {"take_frames", as_method<take_frames>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_inherited_frames", as_method<inherited_frames>(), METH_NOARGS, nullptr},
};

}  // namespace

bool may_go(EndObject* self, PyObject* frame, const endpoint::Terms& terms) {
  return may_go(self, frame_bytes(frame), as_frame(frame)->contents, as_frame(frame)->known_portable, terms);
}
bool may_go(Endpoint* self, PyObject* frame) {
  return may_go(self, frame, terms_of(*self));
}

std::span<const PyMethodDef> frame_putting_methods() {
  return putting;
}
std::span<const PyMethodDef> frame_taking_methods() {
  return taking;
}

}  // namespace shmtree::python
