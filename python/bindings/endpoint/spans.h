// Spans: a profiler that runs is told when a put or a get begins and ends.
#pragma once

#include <atomic>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// From now on, while flags[key] is True, begin(name) is called at the beginning of each span, and at its end the
// __exit__ of what it returned. The first call counts.
void set_spans(PyObject* flags, PyObject* key, PyObject* begin);

inline std::atomic<bool> spans_wanted{false};

// A span from here to the end of the scope; needs the GIL at both. What goes wrong in it stays in it.
class Span {
 public:
  explicit Span(const char* name) {
    if (spans_wanted.load(std::memory_order_acquire)) [[unlikely]]  // what set_spans() wrote before
      begin(name);
  }
  ~Span() {
    if (span_) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(const char* name);
  void end() noexcept;

  PyObject* span_ = nullptr;
};

}  // namespace shmtree::python
