// Encodes instances of classes that are sent by name: namedtuples, dataclasses, Enum members, registered classes.
#include <algorithm>

#include "bindings/codec/encoder.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"

namespace shmtree::python {
namespace {

struct Field {
  Ref name;
  Ref value;
};

// True if `name` is one of the class's `__slots__`. In that case, an entry with that name in the instance's dict is not
// the field, but an additional attribute.
bool is_slot(const ClassInfo& info, PyObject* name) {
  return std::any_of(info.slots.begin(), info.slots.end(), [name](const Ref& slot) {
    return slot.get() == name || PyUnicode_Compare(slot.get(), name) == 0;
  });
}

// Collects the fields that are set. Returns false on an error. Also returns false, with `foreign` set, if the object
// has an attribute that is not a field.
bool collect_fields(PyObject* object, const ClassInfo& info, std::vector<Field>& out, bool& foreign) {
  for (const Ref& slot : info.slots) {
    Ref value(PyObject_GenericGetAttr(object, slot.get()));
    if (value) {
      out.push_back({Ref::borrow(slot.get()), std::move(value)});
    } else if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Clear();
    } else {
      return false;
    }
  }
  if (!info.has_dict) return true;
  Ref attributes(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) return false;
  const CriticalSection alone(attributes.get());
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(attributes.get(), &position, &name, &value)) {
    const bool is_str = PyUnicode_CheckExact(name);
    const int known = is_str && !is_slot(info, name) ? PyDict_Contains(info.fields.get(), name) : 0;
    if (known <= 0) {
      foreign = known == 0;
      return false;
    }
    out.push_back({Ref::borrow(name), Ref::borrow(value)});
  }
  return true;
}

// True if the instance has all required fields. Receivers refuse a dataclass node that lacks one.
bool has_required(const ClassInfo& info, const std::vector<Field>& fields) {
  if (static_cast<Py_ssize_t>(fields.size()) == PyDict_GET_SIZE(info.fields.get())) [[likely]]
    return true;
  return std::all_of(info.required.begin(), info.required.end(), [&fields](const Ref& name) {
    return std::any_of(fields.begin(), fields.end(), [&name](const Field& field) {
      return field.name.get() == name.get() || PyUnicode_Compare(field.name.get(), name.get()) == 0;
    });
  });
}

}  // namespace

bool encode_namedtuple(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  const Py_ssize_t count = PyTuple_GET_SIZE(value);
  if (count != info.field_count) return encoder.needs_pickle(value);
  if (!encoder.enter()) return false;
  encoder.out.add_kind(Kind::kNamedTuple);
  encoder.out.add_name(info.name);
  encoder.out.add_length(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!encoder.child(PyTuple_GET_ITEM(value, i)))
      return encoder.at_attribute(PyTuple_GET_ITEM(info.field_names.get(), i));
  }
  return encoder.leave();
}

bool encode_dataclass(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  if (!encoder.enter()) return false;
  std::vector<Field> fields;
  bool foreign = false;
  if (!collect_fields(value, info, fields, foreign)) return foreign && encoder.needs_pickle(value);
  if (!has_required(info, fields)) return encoder.needs_pickle(value);
  encoder.out.add_kind(Kind::kDataclass);
  encoder.out.add_name(info.name);
  encoder.out.add_length(fields.size());
  for (const Field& field : fields) {
    if (!encoder.try_name(field.name.get())) return !PyErr_Occurred() && encoder.needs_pickle(value);
    if (!encoder.node(field.value.get())) return encoder.at_attribute(field.name.get());
  }
  return encoder.leave();
}

namespace {

// Encodes the flattened form of a value. Keeps it, so that no later object of the message gets the address of one of
// its parts.
bool add_flat(Encoder& encoder, const ClassInfo& info, Ref flat) {
  encoder.out.add_kind(Kind::kRegistered);
  encoder.out.add_name(info.name);
  encoder.keep(Ref::borrow(flat.get()));
  return encoder.sealed([&] { return encoder.node(flat.get()); }) && encoder.leave();
}

// True if the flattened form is the dict of the object's attributes.
bool is_flat_dict(const ClassInfo& info) {
  return info.name == "types:SimpleNamespace";
}

}  // namespace

bool encode_registered(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  if (encoder.leaves_out(value)) return true;
  if (!encoder.enter()) return false;
  Ref flat(call_python(info.flatten.get(), value));
  if (!flat) return false;
  if (add_flat(encoder, info, std::move(flat))) return true;
  if (!is_flat_dict(info)) return encoder.refused_inside(value);
  encoder.session().refused().to_attribute();
  return false;
}

bool encode_model(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  if (!encoder.enter()) return false;
  Ref state(call_python(package().model_state, value));
  if (!state) return false;
  if (state.get() == Py_None) return encoder.needs_pickle(value);
  if (add_flat(encoder, info, std::move(state))) return true;
  encoder.session().refused().drop_step();  // to the dict in the tuple of the state
  encoder.session().refused().to_attribute();
  return false;
}

namespace {

bool is_int_flag(PyTypeObject* type) {
  return is_flag(type) && PyType_IsSubtype(type, &PyLong_Type);
}

// Returns 1 if the value leads to this member, 0 if not, -1 with an error. For most classes, the class must map the
// value to exactly this object, as it does for combined flags. An IntFlag always qualifies: it makes a member for any
// value, and its members are compared as ints, so the class may have forgotten a received member.
int is_member_of_value(const ClassInfo& info, PyObject* value, PyObject* member) {
  if (is_int_flag(info.type) && PyLong_CheckExact(value)) return 1;
  Ref members(PyObject_GetAttrString(type_object(info.type), "_value2member_map_"));
  if (!members) return -1;
  if (!PyDict_Check(members.get())) return 0;
  const Ref found = item_of(members.get(), value);
  if (!found && PyErr_Occurred()) return -1;
  return found.get() == member;
}

}  // namespace

bool encode_enum(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  Ref name(PyObject_GetAttrString(value, "_name_"));
  Ref members(name ? PyObject_GetAttrString(type_object(info.type), "_member_map_") : nullptr);
  if (!members) return false;
  encoder.out.add_kind(Kind::kEnum);
  if (PyUnicode_CheckExact(name.get()) && PyDict_Check(members.get())) {
    const Ref found = item_of(members.get(), name.get());
    if (!found && PyErr_Occurred()) return false;
    if (found.get() == value) {
      encoder.out.add_name(info.name);
      return encoder.try_name(name.get()) || (!PyErr_Occurred() && encoder.needs_pickle(value));
    }
  }
  Ref raw(PyObject_GetAttrString(value, "_value_"));
  if (!raw) return false;
  const int leads_back = is_member_of_value(info, raw.get(), value);
  if (leads_back <= 0) return leads_back == 0 && encoder.needs_pickle(value);
  encoder.out.set_kind(encoder.out.kinds() - 1, Kind::kEnumValue);
  encoder.out.add_name(info.name);
  if (!encoder.enter()) return false;
  if (!encoder.sealed([&] { return encoder.child(raw.get()); })) return encoder.at_attribute("value");
  return encoder.leave();
}

bool encode_unknown(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return encoder.needs_pickle(value);
}

}  // namespace shmtree::python
