// The object in a message that has no native kind, and the path to it. Built only after a refusal, from the inside out.
//
// Needs the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// The step from a container to one of its parts: [number], .keys()[number], [name] or .name.
struct Step {
  enum How : std::uint8_t { kIndex, kKeyItself, kKey, kAttribute };
  How how = kIndex;
  Py_ssize_t number = 0;
  Ref name{};
};

class RefusedObject {
 public:
  explicit operator bool() const noexcept { return static_cast<bool>(object_); }
  PyObject* object() const noexcept { return object_.get(); }

  void set(PyObject* object) {
    clear();
    object_ = Ref::borrow(object);
  }
  void clear() noexcept {
    object_ = Ref();
    steps_.clear();
    inner_steps_ = 0;
  }
  // Adds the step from the container around all earlier steps. Does nothing if no object was refused, so that
  // containers need not know why a part of them was not encoded.
  void add(Step step) {
    if (object_) steps_.push_back(std::move(step));
  }
  // If the last step is a key of the dict of an object's attributes, changes it to an attribute, because a path does
  // not show that dict.
  void to_attribute() noexcept {
    if (!steps_.empty() && steps_.back().how == Step::kKey) steps_.back().how = Step::kAttribute;
  }
  void drop_step() noexcept {
    if (!steps_.empty()) steps_.pop_back();
  }
  // Call it when the walk leaves `object`. If `object` is the refused object, it contains itself.
  void leave(const PyObject* object) noexcept {
    if (object == object_.get()) inner_steps_ = steps_.size();
  }

  // Return the path as a str; null with a Python error set. A value that contains itself has two paths: outer and
  // inner.
  Ref path() const { return path_from(inner_steps_); }
  Ref path_of_inner() const { return path_from(0); }

 private:
  Ref path_from(std::size_t innermost) const;

  Ref object_{};
  std::vector<Step> steps_{};  // the innermost first
  std::size_t inner_steps_ = 0;
};

}  // namespace shmtree::python
