// State behind the writer objects of Python: their streams, and the rows that they add.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "bindings/replay/nest.h"
#include "bindings/replay/replay.h"
#include "bindings/replay/until_closed.h"
#include "platform/waiting.h"
#include "replay/buffer/stream.h"

namespace shmtree::python {

struct WriterState {
  explicit WriterState(std::shared_ptr<Replay> of) noexcept : replay(std::move(of)) {}
  ~WriterState();
  WriterState(const WriterState&) = delete;
  WriterState& operator=(const WriterState&) = delete;

  std::shared_ptr<Replay> replay;
  std::shared_ptr<replay::Stream> stream;
  std::int64_t version = 0;
  std::atomic<bool> closed{false};
};

struct WriterObject {
  PyObject_HEAD WriterState state;
};

inline WriterState& state_of(PyObject* writer) noexcept {
  return reinterpret_cast<WriterObject*>(writer)->state;
}
// Returns false with TypeError set if the object is not a writer.
bool is_writer(PyObject* object);

// Memory for the rows of a call. Calls borrow it from a pool, so that they allocate none.
struct CallRows {
  LeafColumns rows, finals;
  std::vector<replay::RowInfo> infos;
};
class BorrowedRows {
 public:
  BorrowedRows();
  ~BorrowedRows();
  BorrowedRows(const BorrowedRows&) = delete;
  BorrowedRows& operator=(const BorrowedRows&) = delete;
  CallRows& operator*() noexcept { return *taken_; }
  CallRows* operator->() noexcept { return taken_; }

 private:
  CallRows* taken_;
};

// Returns the writer's stream in this process. Returns null with a Python error set.
std::shared_ptr<replay::Stream> stream_of(WriterState& state);

// Calls act(writer, wait) while no other thread uses the stream. The writer's close() ends all waits.
template <class Act>
auto alone(const WriterState& state, replay::Stream& stream, platform::WaitHooks& hooks,
           const platform::Deadline& deadline, Act act) -> decltype(act(stream.writer, platform::WaitContext{})) {
  UntilClosed until(hooks, state.closed);
  const platform::WaitContext wait{deadline, &until};
  return replay::alone(stream, wait, [&](replay::Writer& writer) { return act(writer, wait); });
}

inline PyObject* raise_waited(const Error& error, const WriterState& state) {
  return raise_waited(error, state.closed, "this writer was closed");
}

// Returns the methods of writers that add rows.
std::span<const PyMethodDef> methods_that_add();
// Adds the function that adds to several writers at once to the module. Returns false with a Python error set.
bool init_vector_add(PyObject* module);

}  // namespace shmtree::python
