// Spans: notify a running profiler when a put or a get begins and ends.
#pragma once

#include <atomic>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Sets the profiler. While flags[key] is True, each span calls begin(name) at its beginning, and at its end the
// __exit__ of the object that begin returned. Only the first call of set_spans() has an effect.
void set_spans(PyObject* flags, PyObject* key, PyObject* begin);

inline std::atomic<bool> spans_wanted{false};

// A span that lasts until the end of the scope. Needs the GIL at its beginning and end. Its errors do not reach the
// caller.
class Span {
 public:
  explicit Span(const char* name) {
    if (spans_wanted.load(std::memory_order_acquire)) [[unlikely]]  // makes visible what set_spans() wrote before
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
