#include "bindings/codec/class_shapes.h"

#include <structmember.h>

#include <algorithm>
#include <iterator>

#include "bindings/codec/datetime_api.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"

namespace shmtree::python {
namespace {

PyTypeObject* enum_type = nullptr;
PyTypeObject* flag_type = nullptr;
PyObject* dataclass_fields = nullptr;   // dataclasses.fields
PyObject* dataclass_missing = nullptr;  // dataclasses.MISSING

// The methods that the decorator adds to frozen dataclasses with slots. They do not count as custom state. Null if this
// Python version has none.
PyObject* dataclass_getstate = nullptr;
PyObject* dataclass_setstate = nullptr;

// Returns null if neither the class nor a base has it.
Ref lookup(PyTypeObject* type, const char* name) {
  Ref key(PyUnicode_InternFromString(name));
  return key ? class_member(type, key.get()) : Ref();
}

bool is_inherited_from_object(PyTypeObject* type, const char* name) {
  return lookup(type, name).get() == lookup(&PyBaseObject_Type, name).get();
}

// True if pickle would only call __new__ and set the plain state. The codec then does the same without pickle.
bool has_default_reduction(PyTypeObject* type) {
  return is_inherited_from_object(type, "__reduce_ex__") && is_inherited_from_object(type, "__reduce__") &&
         !lookup(type, "__getnewargs_ex__");
}

bool has_default_state(PyTypeObject* type) {
  const Ref setter = lookup(type, "__setstate__");
  const bool plain_get = is_inherited_from_object(type, "__getstate__") ||
                         (dataclass_getstate && lookup(type, "__getstate__").get() == dataclass_getstate);
  return plain_get && (!setter || setter.get() == dataclass_setstate);
}

// True if pickle would send the member by name: its reduction is a function of module enum that does not refuse.
bool has_enum_reduction(PyTypeObject* type) {
  const Ref method = lookup(type, "__reduce_ex__");
  if (method.get() == lookup(enum_type, "__reduce_ex__").get()) return true;
  const std::string name = method ? global_name(method.get()) : std::string();
  return name.starts_with("enum:") && !name.starts_with("enum:_make_class_unpicklable");
}

// Handles an exception that a class or its attributes caused: clears it and returns 0. Returns -1 for MemoryError and
// for exceptions that are not about the class (KeyboardInterrupt).
int no_such_class() {
  return clear_ordinary_exception() ? 0 : -1;
}

// Returns 1, 0, or -1 with an error.
int classify_namedtuple(ClassInfo& info) {
  PyTypeObject* type = info.type;
  if (type->tp_basicsize != PyTuple_Type.tp_basicsize || type->tp_dictoffset != 0 || type->tp_weaklistoffset != 0 ||
      !has_default_reduction(type) || !is_inherited_from_object(type, "__getstate__") || lookup(type, "__setstate__")) {
    return 0;
  }
  const Ref fields = lookup(type, "_fields");
  if (!fields || !PyTuple_CheckExact(fields.get())) return 0;
  // Requires both attributes to come from the same class: the one that collections.namedtuple made.
  const Ref arguments = lookup(type, "__getnewargs__");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    Ref members(PyObject_GetAttrString(PyTuple_GET_ITEM(type->tp_mro, i), "__dict__"));
    if (!members) return -1;
    Ref own_fields(PyMapping_GetItemString(members.get(), "_fields"));
    if (!own_fields && no_such_class() < 0) return -1;
    Ref own_arguments(PyMapping_GetItemString(members.get(), "__getnewargs__"));
    if (!own_arguments && no_such_class() < 0) return -1;
    if (own_fields || own_arguments) {
      if (own_fields.get() != fields.get() || own_arguments.get() != arguments.get()) return 0;
      break;
    }
  }
  info.field_count = PyTuple_GET_SIZE(fields.get());
  info.field_names = Ref::borrow(fields.get());
  return 1;
}

// True if all bases except object are written in Python, so that an instance consists of a dict and slots.
bool is_plain_python(PyTypeObject* type) {
  for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, i);
    if (!(reinterpret_cast<PyTypeObject*>(base)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  }
  return type->tp_itemsize == 0 && is_inherited_from_object(type, "__new__");
}

// Adds the class's own slots. Call it for a class before its bases. Returns 1, or 0 if a slot is not a field, or -1
// with an error.
int collect_slots(PyObject* cls, ClassInfo& info) {
  Ref members(PyObject_GetAttrString(cls, "__dict__"));
  Ref items(members ? PyMapping_Items(members.get()) : nullptr);
  if (!items) return no_such_class();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* const item = PyList_GET_ITEM(items.get(), i);
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) return 0;  // its metaclass provides another __dict__
    PyObject* const name = PyTuple_GET_ITEM(item, 0);
    PyObject* const member = PyTuple_GET_ITEM(item, 1);
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) continue;
    if (!PyUnicode_Check(name)) return 0;
    const int known = PyDict_Contains(info.fields.get(), name);
    if (known <= 0) return known;
    // A slot of the same name in a derived class hides this one.
    const bool is_hidden = std::any_of(info.slots.begin(), info.slots.end(),
                                       [name](const Ref& slot) { return PyUnicode_Compare(slot.get(), name) == 0; });
    if (!is_hidden) info.slots.push_back(Ref::borrow(name));
  }
  return 1;
}

// Returns the fields of a dataclass or attrs class if pickle would send its state unchanged. Returns null, without an
// error, for any other class.
Ref fields_of(PyTypeObject* type) {
  if (lookup(type, "__dataclass_fields__")) {
    return has_default_state(type) ? Ref(call_python(dataclass_fields, type_object(type))) : Ref();
  }
  if (!lookup(type, "__attrs_attrs__")) return Ref();
  Ref fields(call_python(package().attrs_fields, type_object(type)));
  return fields.get() != Py_None ? std::move(fields) : Ref();
}

// Returns 1 if `__init__` always sets the field, else 0, or -1 with an error. `field`: a field of dataclasses or attrs.
int is_always_set(PyObject* field) {
  const Ref init(PyObject_GetAttrString(field, "init"));
  if (init.get() == Py_True) return 1;
  if (!init && no_such_class() < 0) return -1;
  const Ref factory(PyObject_GetAttrString(field, "default_factory"));
  if (!factory) return no_such_class();
  return factory.get() != dataclass_missing;
}

// Returns 1, 0, or -1 with an error. The attributes that mark a dataclass or an attrs class may be any objects.
int classify_dataclass(ClassInfo& info) {
  PyTypeObject* type = info.type;
  if (!is_plain_python(type) || !has_default_reduction(type) || lookup(type, "__getnewargs__")) return 0;
  const Ref fields = fields_of(type);
  if (!fields) return PyErr_Occurred() ? no_such_class() : 0;
  if (!PyTuple_Check(fields.get())) return 0;
  info.fields = Ref(PyDict_New());
  if (!info.fields) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fields.get()); ++i) {
    Ref name(PyObject_GetAttrString(PyTuple_GET_ITEM(fields.get(), i), "name"));
    if (!name) return no_such_class();
    if (!PyUnicode_CheckExact(name.get())) return 0;
    const Ref number(PyLong_FromSsize_t(i));
    if (!number || PyDict_SetItem(info.fields.get(), name.get(), number.get()) != 0) return -1;
    // A property of that name would run code when the field is set.
    const Ref shadow = class_member(type, name.get());
    const bool is_slot = shadow && Py_IS_TYPE(shadow.get(), &PyMemberDescr_Type);
    if (shadow && Py_TYPE(shadow.get())->tp_descr_set && !is_slot) return 0;
    if (shadow && !is_slot) continue;
    const int is_set = is_always_set(PyTuple_GET_ITEM(fields.get(), i));
    if (is_set < 0) return -1;
    if (is_set == 1) info.required.push_back(std::move(name));
  }
  for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    const int plain = collect_slots(PyTuple_GET_ITEM(type->tp_mro, i), info);
    if (plain <= 0) return plain;
  }
  info.has_dict = type->tp_dictoffset != 0;
  return 1;
}

// Returns 1 if the class is a pydantic model, else 0, or -1 with an error.
int classify_model(const ClassInfo& info) {
  if (!lookup(info.type, "__pydantic_core_schema__") || !has_default_reduction(info.type)) return 0;
  const Ref is_model(call_python(package().is_model, type_object(info.type)));
  return is_model ? is_model.get() == Py_True : -1;
}

// Returns a new reference; null without an error if there is none.
PyObject* optional_attribute(PyObject* module, const char* name) {
  PyObject* found = PyObject_GetAttrString(module, name);
  if (!found) clear_ordinary_exception();
  return found;
}

}  // namespace

bool init_class_shapes() {
  Ref enums(PyImport_ImportModule("enum"));
  Ref dataclasses(PyImport_ImportModule("dataclasses"));
  if (!have_datetime() || !enums || !dataclasses) return false;
  enum_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(enums.get(), "Enum"));
  dataclass_fields = PyObject_GetAttrString(dataclasses.get(), "fields");
  dataclass_missing = PyObject_GetAttrString(dataclasses.get(), "MISSING");
  flag_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(enums.get(), "Flag"));
  if (!enum_type || !flag_type || !dataclass_fields || !dataclass_missing) return false;
  dataclass_getstate = optional_attribute(dataclasses.get(), "_dataclass_getstate");
  dataclass_setstate = optional_attribute(dataclasses.get(), "_dataclass_setstate");
  return !PyErr_Occurred();
}

bool classify(ClassInfo& info) {
  if (const SentClass* sent = find_sent_class(info.type, info.name)) {
    info.encode = sent->encode;
    info.kind = sent->kind;
    return true;
  }
  if (PyErr_Occurred()) return false;
  info.encode = encode_unknown;
  if (PyType_IsSubtype(info.type, enum_type)) {
    if (!has_enum_reduction(info.type)) return !PyErr_Occurred();
    info.encode = encode_enum;
    info.shape = ClassShape::kEnum;
    return true;
  }
  const bool is_tuple = PyType_IsSubtype(info.type, &PyTuple_Type);
  const int fits = is_tuple ? classify_namedtuple(info) : classify_dataclass(info);
  if (fits < 0) return false;
  if (fits == 1) {
    info.encode = is_tuple ? once<encode_namedtuple> : once<encode_dataclass>;
    info.shape = is_tuple ? ClassShape::kNamedTuple : ClassShape::kDataclass;
    return true;
  }
  const int is_model = classify_model(info);
  if (is_model < 0) return false;
  if (is_model == 1) {
    info.encode = once<encode_model>;
    info.shape = ClassShape::kModel;
  } else if (lookup(info.type, "__cuda_array_interface__")) {
    info.encode = once<encode_device_array>;
  }
  return true;
}

bool has_native_kind(PyTypeObject* type) {
  const PyTypeObject* const hot[] = {
      &PyUnicode_Type,  &PyFloat_Type, &PyLong_Type,  &PyArray_Type, &PyDict_Type,      &PyBool_Type,
      Py_TYPE(Py_None), &PyList_Type,  &PyTuple_Type, &PyBytes_Type, &PyByteArray_Type,
  };
  return std::find(std::begin(hot), std::end(hot), type) != std::end(hot) ||
         find_sent_class(type, global_name(type_object(type))) != nullptr;
}

bool is_flag(PyTypeObject* type) noexcept {
  return PyType_IsSubtype(type, flag_type);
}

bool maps_unknown_bits(PyTypeObject* type) {
  return lookup(type, "_missing_").get() != lookup(flag_type, "_missing_").get();
}

bool is_harmless_factory(PyObject* object) {
  const PyTypeObject* const harmless[] = {
      &PyList_Type,      &PyDict_Type,      &PySet_Type,   &PyLong_Type,       &PyFloat_Type,
      &PyUnicode_Type,   &PyTuple_Type,     &PyBool_Type,  &PyBytes_Type,      &PyComplex_Type,
      &PyFrozenSet_Type, &PyByteArray_Type, &PyODict_Type, &PyBaseObject_Type,
  };
  return std::find(std::begin(harmless), std::end(harmless), reinterpret_cast<PyTypeObject*>(object)) !=
         std::end(harmless);
}

}  // namespace shmtree::python
