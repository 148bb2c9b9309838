// Letting other threads of the interpreter run, and coming back.
#pragma once

#include "bindings/python_api.h"

namespace shmtree::python {

// PyEval_RestoreThread(), but for a thread that may no longer come back because the interpreter is shutting down. Such
// a thread is made to end by unwinding its stack, which would run destructors without the GIL and cannot pass through
// noexcept functions: it stays here instead, until the process has ended.
void restore_thread(PyThreadState* state) noexcept;

class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { restore_thread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace shmtree::python
