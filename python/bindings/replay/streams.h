// What is behind the writers of Python: their streams, and how calls of several threads take turns in one.
//
// All calls need the GIL.
#pragma once

#include <memory>
#include <mutex>

#include "bindings/cpython/python_api.h"
#include "bindings/replay/nest.h"
#include "bindings/replay/replay.h"
#include "platform/waiting.h"
#include "replay/writer.h"

namespace shmtree::python {

// What belongs to one process: a forked child begins with one of its own, and a stream of its own. What its parent's
// threads were in the middle of stays as it is there.
struct Stream {
  Stream(const Replay& replay, memory::Identity me)
      : owner(me),
        number(new_stream(*replay.store)),
        tables(replay.tables),
        writer(replay.store, number, tables.get()) {}

  memory::Identity owner;
  std::uint32_t number;
  std::timed_mutex mutex;
  std::shared_ptr<replay::Tables> tables;
  replay::Writer writer;
};

struct WriterState {
  std::shared_ptr<Replay> replay;
  std::shared_ptr<Stream> stream;
  std::int64_t version = 0;
  bool closed = false;
};

struct WriterObject {
  PyObject_HEAD WriterState state;
};

inline WriterState& state_of(PyObject* writer) noexcept {
  return reinterpret_cast<WriterObject*>(writer)->state;
}
// TypeError is set unless it is one.
bool is_writer(PyObject* object);

// Addresses for one call.
class BorrowedAddresses {
 public:
  BorrowedAddresses();
  ~BorrowedAddresses();
  BorrowedAddresses(const BorrowedAddresses&) = delete;
  BorrowedAddresses& operator=(const BorrowedAddresses&) = delete;
  LeafAddresses& operator*() noexcept { return *taken_; }
  LeafAddresses* operator->() noexcept { return taken_; }

 private:
  LeafAddresses* taken_;
};

// The stream of this process. Null with a Python error set.
std::shared_ptr<Stream> stream_of(WriterState& state);

// For threads that have one writer. False when there was no time, or a Python error was set.
bool lock(Stream& stream, const platform::WaitContext& wait);

template <class Act>
auto alone(Stream& stream, const platform::WaitContext& wait, Act act) -> decltype(act(stream.writer)) {
  if (!lock(stream, wait)) {
    return Error{wait.deadline.passed() ? Code::kFull : Code::kInterrupted, "another thread is adding to this stream"};
  }
  const std::lock_guard guard(stream.mutex, std::adopt_lock);
  return act(stream.writer);
}

// Whether the leaf that ends episodes says so, by its address: is any of its bits set?
bool is_done(const Replay& replay, const void* leaf) noexcept;

// Methods of writers that add many rows: extend().
std::span<const PyMethodDef> methods_for_many();
// Adds to the module what adds to several writers at once. False with a Python error set.
bool init_vector_add(PyObject* module);

}  // namespace shmtree::python
