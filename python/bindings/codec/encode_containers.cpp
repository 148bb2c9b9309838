// Sets and the containers of `collections`.
#include <limits>

#include "bindings/codec/encoder.h"
#include "bindings/cpython/exclusive.h"

namespace shmtree::python {
namespace {

constexpr Py_hash_t kRemoved = -1;  // of what a set has in the place of an item that was removed: no object has it

// The items that iterating gives, after their number.
bool items(Encoder& encoder, PyObject* container, Py_ssize_t count) {
  Ref iterator(PyObject_GetIter(container));
  if (!iterator) return false;
  for (Py_ssize_t sent = 0;; ++sent) {
    Ref item(PyIter_Next(iterator.get()));
    if (!item) {
      if (PyErr_Occurred()) return false;
      return sent == count || changed_while_sent(container);
    }
    if (sent == count) return changed_while_sent(container);
    if (!encoder.node(item.get())) return false;
  }
}

// Without an iterator, which takes longer than the items do. Code of an item may change the set, so that its table is
// looked at anew each time.
bool set_of(Encoder& encoder, PyObject* value, Kind kind) {
  if (!encoder.deeper()) return false;
  const CriticalSection alone(value);
  const auto* set = reinterpret_cast<PySetObject*>(value);
  const Py_ssize_t count = PySet_GET_SIZE(value);
  encoder.out.begin_node(kind, count);
  Py_ssize_t sent = 0;
  for (Py_ssize_t i = 0; i <= set->mask; ++i) {
    const setentry entry = set->table[i];
    if (!entry.key || entry.hash == kRemoved) continue;
    if (sent == count || PySet_GET_SIZE(value) != count) return changed_while_sent(value);
    if (!encoder.child(entry.key)) return false;
    ++sent;
  }
  if (sent != count || PySet_GET_SIZE(value) != count) return changed_while_sent(value);
  return encoder.leave();
}

// 1: it has none; 0: it has attributes, which only pickle keeps; -1: error.
int has_no_attributes(PyObject* object) {
  Ref attributes(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 1;
  }
  return PyDict_GET_SIZE(attributes.get()) == 0;
}

bool set_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return set_of(encoder, value, Kind::kSet);
}

bool frozenset_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return set_of(encoder, value, Kind::kFrozenSet);
}

bool deque_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref bound(PyObject_GetAttrString(value, "maxlen"));
  if (!bound) return false;
  const Py_ssize_t maxlen = bound.get() == Py_None ? -1 : PyLong_AsSsize_t(bound.get());
  const Py_ssize_t count = PyObject_Size(value);
  if (count < 0 || PyErr_Occurred()) return false;
  if (!encoder.deeper()) return false;
  encoder.out.begin_node(Kind::kDeque, count);
  encoder.out.add_length(static_cast<std::size_t>(maxlen) + 1);
  return items(encoder, value, count) && encoder.leave();
}

bool ordered_dict_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const int plain = has_no_attributes(value);
  if (plain <= 0) return plain == 0 && encoder.needs_pickle(value);
  if (!encoder.deeper()) return false;
  const Py_ssize_t count = PyDict_GET_SIZE(value);
  encoder.out.begin_node(Kind::kOrderedDict, count);
  // Its own order: that of the dict inside is another one after move_to_end().
  Ref iterator(PyObject_GetIter(value));
  if (!iterator) return false;
  Py_ssize_t sent = 0;
  for (; sent <= count; ++sent) {
    Ref key(PyIter_Next(iterator.get()));
    if (!key) break;
    Ref item = item_of(value, key.get());
    if (!item) return PyErr_Occurred() ? false : changed_while_sent(value);
    if (sent == count) return changed_while_sent(value);
    if (!encoder.node(key.get()) || !encoder.node(item.get())) return false;
  }
  if (PyErr_Occurred()) return false;
  return sent == count ? encoder.leave() : changed_while_sent(value);
}

bool default_dict_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref factory(PyObject_GetAttrString(value, "default_factory"));
  if (!factory) return false;
  const std::string name = factory.get() == Py_None ? std::string() : global_name(factory.get());
  if (factory.get() != Py_None && (!is_harmless_factory(factory.get()) || !is_found_by_name(factory.get(), name))) {
    return !PyErr_Occurred() && encoder.needs_pickle(value);
  }
  if (!encoder.deeper()) return false;
  encoder.out.add_kind(Kind::kDefaultDict);
  if (factory.get() == Py_None) {
    encoder.out.add_none_node();
  } else {
    encoder.out.add_kind(Kind::kGlobal);
    encoder.out.add_name(name);
  }
  return encoder.pairs(value) && encoder.leave();
}

bool counter_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const int plain = has_no_attributes(value);
  if (plain <= 0) return plain == 0 && encoder.needs_pickle(value);
  if (!encoder.deeper()) return false;
  encoder.out.add_kind(Kind::kCounter);
  return encoder.pairs(value) && encoder.leave();
}

}  // namespace

bool encode_set(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<set_node>(encoder, value, info);
}

bool encode_frozenset(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<frozenset_node>(encoder, value, info);
}

bool encode_deque(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<deque_node>(encoder, value, info);
}

bool encode_ordered_dict(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<ordered_dict_node>(encoder, value, info);
}

bool encode_default_dict(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<default_dict_node>(encoder, value, info);
}

bool encode_counter(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<counter_node>(encoder, value, info);
}

}  // namespace shmtree::python
