#include "bindings/codec/decoder.h"
#include "bindings/codec/standard_classes.h"

namespace shmtree::python {

namespace {

bool decode_named_pairs(Decoder& decoder, PyObject* dict) {
  const std::uint64_t count = decoder.in.next_count(1);
  for (std::uint64_t i = 0; i < count; ++i) {
    PyObject* key = decoder.next_key();  // the decoder's own, so it stays
    PyObject* value = key ? decoder.node() : nullptr;
    if (!value) return false;
    const int failed = PyDict_SetItem(dict, key, value);
    Py_DECREF(value);
    if (failed) return false;
  }
  return true;
}

}  // namespace

bool decode_pairs(Decoder& decoder, PyObject* dict, bool str_keys) {
  if (str_keys) return decode_named_pairs(decoder, dict);
  const std::uint64_t count = decoder.in.next_count(2);
  for (std::uint64_t i = 0; i < count; ++i) {
    Ref key(decoder.node());
    Ref value(key ? decoder.node() : nullptr);
    if (!value) return false;
    if (PyDict_SetItem(dict, key.get(), value.get()) != 0) {
      return decoder.corrupt_unless(nullptr, "a key cannot be hashed"), false;
    }
  }
  return true;
}

PyObject* decode_ordered_dict(Decoder& decoder, bool str_keys) {
  Ref dict(PyODict_New());
  const std::uint64_t count = decoder.in.next_count(str_keys ? 1 : 2);
  for (std::uint64_t i = 0; dict && i < count; ++i) {
    Ref key(str_keys ? Py_XNewRef(decoder.next_key()) : decoder.node());
    Ref value(key ? decoder.node() : nullptr);
    if (!value) return nullptr;
    if (PyODict_SetItem(dict.get(), key.get(), value.get()) != 0) {
      return decoder.corrupt_unless(nullptr, "a key cannot be hashed");
    }
  }
  return dict.release();
}

PyObject* decode_default_dict(Decoder& decoder) {
  const Kind kind = decoder.in.peek_kind();
  if (kind != Kind::kNone && kind != Kind::kGlobal) return decoder.in.fail("a defaultdict has no factory"), nullptr;
  Ref factory(decoder.node());
  PyObject* cls = factory ? standard_class(StandardClass::kDefaultDict) : nullptr;
  Ref dict(cls ? decoder.corrupt_unless(PyObject_CallOneArg(cls, factory.get()), "a default factory cannot be called")
               : nullptr);
  return dict && decode_pairs(decoder, dict.get(), false) ? dict.release() : nullptr;
}

PyObject* decode_counter(Decoder& decoder) {
  PyObject* cls = standard_class(StandardClass::kCounter);
  Ref dict(cls ? PyObject_CallNoArgs(cls) : nullptr);
  return dict && decode_pairs(decoder, dict.get(), false) ? dict.release() : nullptr;
}

PyObject* decode_set(Decoder& decoder, bool frozen) {
  const std::uint64_t count = decoder.in.next_count();
  Ref set(frozen ? PyFrozenSet_New(nullptr) : PySet_New(nullptr));
  for (std::uint64_t i = 0; set && i < count; ++i) {
    Ref item(decoder.node());
    if (!item) return nullptr;
    // A frozenset that nobody else has seen may still be filled.
    if (PySet_Add(set.get(), item.get()) != 0) return decoder.corrupt_unless(nullptr, "an item cannot be hashed");
  }
  return set.release();
}

PyObject* decode_deque(Decoder& decoder) {
  const std::uint64_t count = decoder.in.next_count();
  const std::uint64_t bound = decoder.in.next_length();  // maxlen + 1, 0 for none
  PyObject* cls = standard_class(StandardClass::kDeque);
  Ref empty(cls ? PyTuple_New(0) : nullptr);
  Ref maxlen(bound == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(bound - 1));
  if (!empty || !maxlen) return nullptr;
  Ref deque(decoder.corrupt_unless(PyObject_CallFunctionObjArgs(cls, empty.get(), maxlen.get(), nullptr),
                                   "a deque cannot be so long"));
  Ref append(deque ? PyObject_GetAttrString(deque.get(), "append") : nullptr);
  for (std::uint64_t i = 0; append && i < count; ++i) {
    Ref item(decoder.node());
    Ref done(item ? PyObject_CallOneArg(append.get(), item.get()) : nullptr);
    if (!done) return nullptr;
  }
  return append ? deque.release() : nullptr;
}

}  // namespace shmtree::python
