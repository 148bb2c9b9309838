// The common part of the Python objects for ends with a ring: Broadcasts, subscribers and Latests. Their messages have
// many readers, so that views are read-only.
//
// All calls need the GIL. endpoint::RingPort manages what close() releases; this file adds what only Python needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "bindings/codec/decode.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_object.h"
#include "bindings/objects/arena_arrays.h"
#include "broadcast/ring.h"
#include "endpoint/ring_port.h"

namespace shmtree::python {

// Hooks for the waits of such an end. They also end the wait when another thread closes the end.
class RingHooks : public GilHooks {
 public:
  explicit RingHooks(const EndObject* self) noexcept : self_(self) {}
  bool interrupted() noexcept override {
    was_closed_ = self_->kind->closed(self_);
    return was_closed_ || GilHooks::interrupted();
  }
  // True if a close has ended the wait.
  bool was_closed() const noexcept { return was_closed_; }

  // Sets the exception for a call that waited with these hooks, and returns null. An exception that a signal handler
  // raised stays set. If the end was closed during the wait, sets ChannelClosed.
  PyObject* raise(const Error& error) const;

 private:
  const EndObject* self_;
  bool was_closed_ = false;
};

// Sets ChannelClosed, or TypeError for an object that was never initialised. `name` is that of the class.
void set_ring_closed(const char* name, bool was_attached);

// An end with a `Part` of shared memory: a Publisher, a Subscriber or a Store. `Self` derives from this class and has
//   kName      the name of the Python class, for errors
//   kRefuser   the end of the text "... because of the allow_pickle=False of ..." of errors
// Its other members are valid when they are zero, and need no destructor.
template <class Self, class PartOfSelf>
struct RingEnd : EndObject {
  using Part = PartOfSelf;
  endpoint::RingPort<Part> port;

  static Self* of(PyObject* object) noexcept { return static_cast<Self*>(as_end(object)); }

  // Returns null with a Python error set if the end is closed.
  std::shared_ptr<Part> open() const {
    auto part = port.part();
    if (!part) set_closed(this);
    return part;
  }
  // Calls act(part) if the end is open. Returns null with a Python error set if it is closed.
  template <class Act>
  static PyObject* with_open(PyObject* object, Act act) {
    const auto part = of(object)->open();
    return part ? act(*part) : nullptr;
  }

  // The functions of tp_new, and of EndKind.
  static PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
    Ref self(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    of(self.get())->kind = &kKind;
    new (&of(self.get())->port) endpoint::RingPort<Part>();
    return self.release();
  }
  static bool is_closed(const EndObject* self) noexcept { return static_cast<const Self*>(self)->port.closed(); }
  static void close(EndObject* self) noexcept {
    static_cast<Self*>(self)->port.close([](Part& part) {
      part.close();
      part.wake();  // ends the waits in calls of this object
    });
  }
  static void fail(EndObject* self, memory::Failure failure) noexcept {
    if constexpr (requires(Part & part) { part.close(failure); }) {
      static_cast<Self*>(self)->port.close([&](Part& part) { part.close(failure); });
    }
  }
  static std::shared_ptr<memory::Arena> arena(EndObject* self) {
    const auto part = static_cast<Self*>(self)->open();
    return part ? part->ring()->arena() : nullptr;
  }
  static PyObject* new_array(EndObject* self, const ArrayRequest& request) {
    const auto in = arena(self);
    if (!in) return nullptr;
    RingHooks hooks(self);
    PyObject* array = python::new_array(in, request, hooks);
    if (!array && hooks.was_closed()) set_closed(self);
    return array;
  }
  static void set_closed(const EndObject* self) noexcept {
    set_ring_closed(Self::kName, static_cast<const Self*>(self)->port.was_attached());
  }
  static const char* refuser(const EndObject*) noexcept { return Self::kRefuser; }
  static void destroy(EndObject* self) noexcept { static_cast<Self*>(self)->port.~RingPort(); }
  static constexpr EndKind kKind{is_closed, close, fail, arena, new_array, set_closed, refuser, destroy};

  // Attaches a new object; `name` is its Name, or None. Throws pybind11::error_already_set.
  void attach(std::shared_ptr<Part> part, bool allows_pickle, pybind11::handle name) {
    if (port.was_attached()) {
      PyErr_Format(PyExc_RuntimeError, "this %s was initialised before", Self::kName);
      throw pybind11::error_already_set();
    }
    attach_new(std::move(part), allows_pickle, name.cast<std::shared_ptr<endpoint::Name>>());
  }
  // Does the same for an object that no other code has seen.
  void attach_new(std::shared_ptr<Part> part, bool allows_pickle, std::shared_ptr<endpoint::Name> name) {
    allow_pickle = allows_pickle;
    spin.set_as(part->ring()->arena()->spin());
    port.attach(std::move(part), std::move(name));
  }
};

// Returns the attribute `_name` of such an end: its Name, or None.
template <class Self>
PyObject* name_of_end(PyObject* self, void*) {
  return new_reference_from([&] { return pybind11::cast(Self::of(self)->port.name()); });
}

inline PyObject* to_python(bool value) {
  return PyBool_FromLong(value);
}
inline PyObject* to_python(std::uint64_t value) {
  return PyLong_FromUnsignedLongLong(value);
}
inline PyObject* to_python(const platform::WakeText& text) {
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

// A method without arguments, or an attribute: returns the result of `read`, a member function of the part or its ring.
template <class Self, auto read, class Unused>
PyObject* read_part(PyObject* self, Unused*) {
  return Self::with_open(self, [](typename Self::Part& part) {
    if constexpr (std::is_invocable_v<decltype(read), typename Self::Part&>) {
      return to_python(std::invoke(read, part));
    } else {
      return to_python(std::invoke(read, *part.ring()));
    }
  });
}
template <class Self, auto read>
PyCFunction reading_method() noexcept {
  return as_method<read_part<Self, read, PyObject>>();
}
template <class Self, auto read>
constexpr getter reading_attribute() noexcept {
  return guarded<read_part<Self, read, void>>;
}

// Says if another attempt to build an object may succeed.
enum class Retry {
  kNever,
  kCounted,     // memory ran out, or the exception is not an Exception, such as SystemExit
  kInterrupted  // a signal handler raised, or the exception is KeyboardInterrupt
};

// Builds the object of a published frame. `block`, if valid, keeps the frame and the blocks that it refers to. `copy`
// is the result of endpoint::copy_policy_of_published(). Returns null with a Python error set, and sets `*retry`.
PyObject* decode_published(memory::Arena& arena, std::span<const std::byte> frame, const memory::Lease& block,
                           CopyPolicy copy, bool allow_pickle, Retry* retry);

// Returns (number, frame): the frame of a published message, as bytes that stand alone.
PyObject* published_frame(memory::Arena& arena, std::uint64_t number, std::span<const std::byte> frame,
                          const memory::Lease& block);

// Returns (number of messages put, pids of the publishers, [(subscription, its pid, number of messages that it has
// passed)], False if no publisher is left).
pybind11::tuple progress_of(const broadcast::Ring& ring);

}  // namespace shmtree::python
