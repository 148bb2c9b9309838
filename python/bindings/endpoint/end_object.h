// The common part of the Python objects of all ends: senders, receivers and queues (endpoint.h), and Broadcasts,
// subscribers and Latests (ring_end.h). Methods that every end has belong in end_object.cpp.
//
// All calls need the GIL. Threads may close an end, or take its deferred exception, while other threads are in calls of
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "bindings/cpython/python_api.h"
#include "bindings/objects/arena_arrays.h"
#include "channel/wake_hub.h"
#include "memory/arena.h"
#include "memory/deaths.h"
#include "platform/spin.h"

namespace shmtree::python {

struct EndObject;

// Functions in which the kinds of ends differ.
struct EndKind {
  bool (*closed)(const EndObject* self) noexcept;
  void (*close)(EndObject* self) noexcept;
  // Closes the end, and reports a failure of this process. Called only for ends that put or publish.
  void (*fail)(EndObject* self, memory::Failure failure) noexcept;
  // Returns null with ChannelClosed set if the end is closed.
  std::shared_ptr<memory::Arena> (*arena)(EndObject* self);
  // Makes an array in the arena. Waits for memory until the end is closed.
  PyObject* (*new_array)(EndObject* self, const ArrayRequest& request);
  // Sets ChannelClosed for an end that is closed, or another error for one that was never attached.
  void (*set_closed)(const EndObject* self) noexcept;
  // Returns the end of the text "... because of the allow_pickle=False of ..." of errors.
  const char* (*refuser)(const EndObject* self) noexcept;
  // Destroys the C++ members that follow EndObject.
  void (*destroy)(EndObject* self) noexcept;
};

struct EndObject {
  PyObject_HEAD const EndKind* kind;
  bool allow_pickle;
  std::atomic<std::uint64_t> pickled;  // objects passed to put() or publish() that needed a pickle
  std::atomic<PyObject*> deferred;     // an exception for the next receiving call; owned
  platform::SpinSetting spin;          // the arena sets it when the end is attached
};

inline EndObject* as_end(PyObject* object) noexcept {
  return reinterpret_cast<EndObject*>(object);
}

// Description of an end's type: tables that are joined.
struct EndType {
  const char* name;
  std::size_t size_bytes;
  newfunc make;
  std::initializer_list<std::span<const PyMethodDef>> methods;  // besides those that all ends have
  std::initializer_list<std::span<const PyGetSetDef>> attributes;
  iternextfunc next = nullptr;  // for ends that are iterators
};
// Makes the type and adds it to the module. Returns false with a Python error set.
bool add_end_type(PyObject* module, const EndType& description);

// Methods of ends that put or publish: fail(), new_empty(), new_zeros().
std::span<const PyMethodDef> publishing_methods();

// Sets the one Python callable (which returns None) that runs with an object after one of its ends was closed. It wakes
// threads and tasks that do not wait in a call of the object.
void set_close_callback(PyObject* callback);
// Calls that callable with `self`. Returns None, or null with a Python error set.
PyObject* run_close_callback(PyObject* self);

// Returns the hub in an object, or null with TypeError set.
channel::WakeHub* hub_of(PyObject* object);

// Sets the exception that an earlier call has left for this one. Returns false if there is none.
bool take_deferred(EndObject* self);
inline bool raise_deferred(EndObject* self) {
  return self->deferred.load(std::memory_order_relaxed) != nullptr && take_deferred(self);
}
// Moves the current exception to the next call, because this call has received items that it must return first.
void defer_exception(EndObject* self);

// Create the types and add them to the module. Return false with a Python error set.
bool init_sender(PyObject* module);
bool init_receiver(PyObject* module);
bool init_queue(PyObject* module);
bool init_delivery(PyObject* module);
bool init_broadcast(PyObject* module);
bool init_subscriber(PyObject* module);
bool init_latest(PyObject* module);

}  // namespace shmtree::python
