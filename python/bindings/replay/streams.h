// What is behind the writers of Python: their streams, and how calls of several threads take turns in one.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "bindings/cpython/python_api.h"
#include "bindings/replay/nest.h"
#include "bindings/replay/replay.h"
#include "bindings/replay/until_closed.h"
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
  std::atomic<unsigned long> user{0};  // the thread that has the mutex
  std::shared_ptr<replay::Tables> tables;
  replay::Writer writer;
};

struct WriterState {
  explicit WriterState(std::shared_ptr<Replay> of) noexcept : replay(std::move(of)) {}
  ~WriterState();
  WriterState(const WriterState&) = delete;
  WriterState& operator=(const WriterState&) = delete;

  std::shared_ptr<Replay> replay;
  std::shared_ptr<Stream> stream;
  std::int64_t version = 0;
  std::atomic<bool> closed{false};
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

// Gives up a stream, which ends with its last call.
void let_go(std::shared_ptr<Stream> stream);

// The stream of this process. Null with a Python error set.
std::shared_ptr<Stream> stream_of(WriterState& state);

// While this thread has the mutex.
class InUse {
 public:
  explicit InUse(Stream& stream) noexcept : stream_(stream) {
    stream_.user.store(PyThread_get_thread_ident(), std::memory_order_relaxed);
  }
  ~InUse() { stream_.user.store(0, std::memory_order_relaxed); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Stream& stream_;
};

// For threads that have one writer. False when there was no time, it was closed, or a Python error was set.
bool lock(Stream& stream, const platform::WaitContext& wait);

// act(writer, wait), in which the writer's close() ends all waits.
template <class Act>
auto alone(const WriterState& state, Stream& stream, platform::WaitHooks& hooks, const platform::Deadline& deadline,
           Act act) -> decltype(act(stream.writer, platform::WaitContext{})) {
  UntilClosed until(hooks, state.closed);
  const platform::WaitContext wait{deadline, &until};
  if (!lock(stream, wait)) {
    const bool is_late = deadline.passed() && !until.ended();
    return Error{is_late ? Code::kFull : Code::kInterrupted, "another thread is adding to this stream"};
  }
  const std::lock_guard guard(stream.mutex, std::adopt_lock);
  const InUse in_use(stream);
  if (until.ended()) return Error{Code::kInterrupted, "closed meanwhile"};
  return act(stream.writer, wait);
}

inline PyObject* raise_waited(const Error& error, const WriterState& state) {
  return raise_waited(error, state.closed, "this writer was closed");
}

// Whether the leaf that ends episodes says so, by its address: is any of its bits set?
bool is_done(const Replay& replay, const void* leaf) noexcept;

// Methods of writers that add many rows: extend().
std::span<const PyMethodDef> methods_for_many();
// Adds to the module what adds to several writers at once. False with a Python error set.
bool init_vector_add(PyObject* module);

}  // namespace shmtree::python
