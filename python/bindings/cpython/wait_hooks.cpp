#include "bindings/cpython/wait_hooks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "bindings/cpython/gil.h"
#include "memory/arena.h"

namespace shmtree::python {
namespace {

PyObject* idle_callback = nullptr;  // set when the package is imported
std::atomic<unsigned long> exiting_thread{0};

}  // namespace

void block_until_exit() noexcept {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void restore_thread(PyThreadState* state) noexcept {
  without_unwinding([state] { PyEval_RestoreThread(state); });
}

void set_exiting(bool exiting) {
  exiting_thread = exiting ? PyThread_get_thread_ident() : 0;
}

void block_if_left_behind() {
  const unsigned long exiting = exiting_thread.load(std::memory_order_relaxed);
  if (exiting == 0 || exiting == PyThread_get_thread_ident()) return;
  PyEval_SaveThread();
  block_until_exit();
}

namespace {

// True if any signal would run a handler of the program, which could do anything. Needs the GIL.
[[maybe_unused]] bool has_signal_handlers() noexcept {
  // Both objects are kept forever. The import may let another thread run, which may set them first, so check again
  // after the import.
  static constinit PyObject *handler_of = nullptr, *raises = nullptr;
  if (!raises) {
    const Ref module(PyImport_ImportModule("_signal"));
    Ref found(module ? PyObject_GetAttrString(module.get(), "getsignal") : nullptr);
    Ref raising(found ? PyObject_GetAttrString(module.get(), "default_int_handler") : nullptr);
    if (raising && !raises) {
      handler_of = found.release();
      raises = raising.release();
    }
  }
  bool has = !raises;
  constexpr int kSignals = 65;
  for (int number = 1; number < kSignals && !has; ++number) {
    const Ref handler(PyObject_CallFunction(handler_of, "i", number));
    has = handler && PyCallable_Check(handler.get()) && handler.get() != raises;
  }
  PyErr_Clear();
  return has;
}

// Needs the GIL: CPython removes threads under it, and adds new ones at the head of the list. Returns 0 (unknown) in
// free-threaded builds and in programs that handle signals.
std::uint32_t count_threads() noexcept {
#ifdef Py_GIL_DISABLED
  return 0;
#else
  if (has_signal_handlers()) return 0;
  std::uint32_t count = 0;
  PyThreadState* each = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; each; each = PyThreadState_Next(each)) ++count;
  return count;
#endif
}

bool is_zero_or_one(PyObject* number) noexcept {
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(number, &overflow);
  return overflow == 0 && (value == 0 || value == 1);
}

}  // namespace

void note_process_name() noexcept {
  const Ref key(PyUnicode_FromString("multiprocessing.process"));
  const Ref module(key ? PyImport_GetModule(key.get()) : nullptr);
  const Ref process(module ? PyObject_GetAttrString(module.get(), "_current_process") : nullptr);
  const Ref name(process ? PyObject_GetAttrString(process.get(), "_name") : nullptr);
  Py_ssize_t bytes = 0;
  const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8AndSize(name.get(), &bytes) : nullptr;
  if (text) memory::Arena::set_process_name({text, static_cast<std::size_t>(bytes)});
  PyErr_Clear();
}

void GilHooks::after_block() noexcept {
  restore_thread(state_);
}

bool GilHooks::interrupted() noexcept {
  if (idle_wanted.load(std::memory_order_relaxed)) [[unlikely]]
    call_idle_callback();
  if (PyErr_Occurred() || PyErr_CheckSignals() != 0) return true;
  threads_ = count_threads();
  return false;
}

bool DetachedHooks::interrupted() noexcept {
  bool is_interrupted = false;
  with_gil([&] { is_interrupted = GilHooks().interrupted(); });
  return is_interrupted;
}

void set_idle_callback(PyObject* callback) {
  Py_INCREF(callback);
  Py_XDECREF(std::exchange(idle_callback, callback));
}

void call_idle_callback() {
  if (!idle_callback) return;
  Ref result(call_python(idle_callback));
  if (!result) PyErr_WriteUnraisable(idle_callback);
}

bool parse_timeout(PyObject* timeout, std::optional<std::chrono::nanoseconds>* out, const char* what) {
  out->reset();
  if (!timeout || timeout == Py_None) return true;
  const bool is_flag = PyBool_Check(timeout);  // a `block` in the wrong place
  double seconds = is_flag ? -1.0 : PyFloat_AsDouble(timeout);
  if (seconds == -1.0 && (is_flag || PyErr_Occurred())) {
    if (is_flag || PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s is %R; it must be a number of seconds, or None", what, timeout);
    }
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
    PyErr_Clear();
    const Ref zero(PyLong_FromLong(0));
    const int is_negative = zero ? PyObject_RichCompareBool(timeout, zero.get(), Py_LT) : -1;
    if (is_negative < 0) return false;
    seconds = is_negative ? 0 : HUGE_VAL;
  }
  if (std::isnan(seconds)) {
    PyErr_Format(PyExc_ValueError, "%s is NaN; it must be a number of seconds, or None", what);
    return false;
  }
  constexpr double kCenturies = 9e9;
  if (seconds < kCenturies) *out = std::chrono::nanoseconds(static_cast<std::int64_t>(std::max(seconds, 0.0) * 1e9));
  return true;
}

PyObject* spin_seconds(const platform::SpinSetting& spin) {
  return PyFloat_FromDouble(static_cast<double>(spin.ns()) * 1e-9);
}

bool set_spin_seconds(platform::SpinSetting& spin, PyObject* seconds) {
  const bool is_bool = seconds && PyBool_Check(seconds);
  const double value = seconds && !is_bool ? PyFloat_AsDouble(seconds) : -1.0;
  const bool failed = PyErr_Occurred() != nullptr;
  if (value >= 0) return spin.set_ns(platform::spin_ns_of(value)).ok();
  if (failed && !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
  const bool is_number = seconds && !is_bool && !(failed && PyErr_ExceptionMatches(PyExc_TypeError));
  PyErr_Format(is_number ? PyExc_ValueError : PyExc_TypeError, "spin is %R; it must be a number of seconds, 0 or more",
               seconds ? seconds : Py_None);
  return false;
}

bool parse_deadline(PyObject* block, PyObject* timeout, platform::Deadline* out) {
  const bool is_number = block && (PyFloat_Check(block) || (PyLong_CheckExact(block) && !is_zero_or_one(block)));
  if (is_number) {
    PyErr_Format(PyExc_TypeError, "block is %R; it must be True or False; pass seconds as timeout=%R", block, block);
    return false;
  }
  const int blocks = block ? PyObject_IsTrue(block) : 1;
  if (blocks < 0) return false;
  std::optional<std::chrono::nanoseconds> time{0};
  if (blocks != 0 && !parse_timeout(timeout, &time)) return false;
  *out = platform::Deadline::after(time);
  return true;
}

}  // namespace shmtree::python
