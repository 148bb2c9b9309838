// Letting other threads of the interpreter run, and coming back.
#pragma once

#include <cstddef>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// PyEval_RestoreThread(), but for a thread that may no longer come back because the interpreter is shutting down. Such
// a thread is made to end by unwinding its stack, which would run destructors without the GIL and cannot pass through
// noexcept functions: it stays here instead, until the process has ended.
void restore_thread(PyThreadState* state) noexcept;

[[noreturn]] void stay_until_the_end() noexcept;

// A call of the C API that runs Python code. A thread that may no longer go on with that code stays here, likewise.
template <class Call>
auto staying(Call call) noexcept {
  try {
    return call();
  } catch (...) {  // it throws nothing: this is how glibc unwinds a thread that has to end
    stay_until_the_end();
  }
}

// callable(*arguments), staying() so: null with a Python error set.
template <class... Arguments>
PyObject* call_python(PyObject* callable, Arguments*... arguments) noexcept {
  return staying([&] {
    PyObject* array[] = {nullptr, arguments...};
    return PyObject_Vectorcall(callable, array + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  });
}

// Nothing, unless it is `worth` it.
class WithoutGil {
 public:
  explicit WithoutGil(bool worth = true) noexcept : state_(worth ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_) restore_thread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

template <class Call>
auto without_gil(Call call, bool worth = true) {
  const WithoutGil unlocked(worth);
  return call();
}

}  // namespace shmtree::python
