// Releases the GIL and takes it again.
#pragma once

#include <cstddef>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Calls PyEval_RestoreThread(). If the interpreter is shutting down, CPython would end the calling thread by unwinding
// its stack. The unwinding would run destructors without the GIL, and cannot pass through noexcept functions. Therefore
// such a thread blocks here until the process has ended.
void restore_thread(PyThreadState* state) noexcept;

[[noreturn]] void block_until_exit() noexcept;

// Makes a C API call that runs Python code. A thread that CPython ends in that call blocks here in the same way.
template <class Call>
auto without_unwinding(Call call) noexcept {
  try {
    return call();
  } catch (...) {  // no C++ exception: glibc unwinds a thread that has to end
    block_until_exit();
  }
}

// Calls callable(*arguments) through without_unwinding(). Returns null with a Python error set.
template <class... Arguments>
PyObject* call_python(PyObject* callable, Arguments*... arguments) noexcept {
  return without_unwinding([&] {
    PyObject* array[] = {nullptr, arguments...};
    return PyObject_Vectorcall(callable, array + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  });
}

// PyObject_GetIter() and PyIter_Next() through without_unwinding().
inline PyObject* iterator_of(PyObject* iterable) noexcept {
  return without_unwinding([&] { return PyObject_GetIter(iterable); });
}
inline PyObject* next_of(PyObject* iterator) noexcept {
  return without_unwinding([&] { return PyIter_Next(iterator); });
}

// Releases the GIL for the scope. Does nothing if `worth` is false.
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
