#include "bindings/codec/refused_object.h"

#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"

namespace shmtree::python {
namespace {

Ref text_of(const Step& step) {
  switch (step.how) {
    case Step::kIndex: return Ref(PyUnicode_FromFormat("[%zd]", step.number));
    case Step::kKeyItself: return Ref(PyUnicode_FromFormat(".keys()[%zd]", step.number));
    case Step::kAttribute: return Ref(PyUnicode_FromFormat(".%S", step.name.get()));
    case Step::kKey: break;
  }
  const Ref key(call_python(package().key_text, step.name.get()));
  return Ref(key ? PyUnicode_FromFormat("[%S]", key.get()) : nullptr);
}

}  // namespace

Ref RefusedObject::path_from(std::size_t innermost) const {
  Ref path(PyUnicode_FromString(""));
  for (std::size_t i = steps_.size(); path && i > innermost; --i) {
    const Ref step = text_of(steps_[i - 1]);
    path = Ref(step ? PyUnicode_Concat(path.get(), step.get()) : nullptr);
  }
  return path;
}

}  // namespace shmtree::python
