// Instances of classes that travel by name. What a name leads to is checked before it is used.
#include <string>
#include <vector>

#include "bindings/codec/decoder.h"
#include "bindings/codec/describe.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"

namespace shmtree::python {
namespace {

// The class of that name, if it is one of that shape. Null on failure.
const ClassInfo* class_of(Decoder& decoder, ClassShape shape, const char* what) {
  const format::Name name = decoder.in.next_name();
  PyObject* cls = decoder.global(name);
  if (!cls) return nullptr;
  const ClassInfo* info = PyType_Check(cls) ? current_class_info(reinterpret_cast<PyTypeObject*>(cls)) : nullptr;
  if (info && info->shape == shape) return info;
  if (!PyErr_Occurred()) {
    const std::string text(name.text);
    decoder.incompatible(
        decoder.in.position(),
        Ref(PyUnicode_FromFormat("'%.500s' is a %s in the message, and none here", text.c_str(), what)));
  }
  return nullptr;
}

// Names with commas between them.
std::string joined(PyObject* names) {
  std::string text;
  const Ref list(PySequence_List(names));
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i) {
    const char* name = PyUnicode_AsUTF8(PyList_GET_ITEM(list.get(), i));
    if (i != 0) text += ", ";
    text += name ? name : "?";
  }
  PyErr_Clear();
  return text.empty() ? "none" : text;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// The node at `position` is a dataclass, or of attrs, that has the field on one side only.
PyObject* other_fields(Decoder& decoder, const ClassInfo& info, std::size_t position, PyObject* field, bool is_here) {
  const std::string sent = joined(fields_of_node(decoder.frame(), position)), here = joined(info.fields.get());
  const char* format = is_here
                           ? "'%.500s' has a field '%U' here, and no value for it, and the message has no such field"
                           : "'%.500s' has no field '%U' here, and the message has one";
  const Ref text(PyUnicode_FromFormat(format, info.name.c_str(), field));
  if (!text) return nullptr;
  return decoder.incompatible(
      position, Ref(PyUnicode_FromFormat("%U. Fields in the message: %.1000s; fields here: %.1000s", text.get(),
                                         sent.c_str(), here.c_str())));
}

// The first field that `made` lacks and every instance has. Null, without an error, when there is none.
PyObject* missing_field(const ClassInfo& info, PyObject* made) {
  for (const Ref& name : info.required) {
    const Ref value(PyObject_GenericGetAttr(made, name.get()));
    if (value) continue;
    PyErr_Clear();
    return name.get();
  }
  return nullptr;
}

// The node at `position` is a member of an Enum that has no such one here; `what` is its name or value.
PyObject* no_member(Decoder& decoder, const ClassInfo& info, std::size_t position, const char* format, PyObject* what) {
  PyErr_Clear();
  const Ref members(PyObject_GetAttrString(type_object(info.type), "_member_map_"));
  const std::string here = members ? joined(members.get()) : "?";
  PyErr_Clear();
  const Ref text(PyUnicode_FromFormat(format, info.name.c_str(), what));
  if (!text) return nullptr;
  return decoder.incompatible(position,
                              Ref(PyUnicode_FromFormat("%U. Members here: %.1000s", text.get(), here.c_str())));
}

PyObject* refuse(const char* what) {
  PyErr_Format(error_types().pickle_refused,
               "The message holds %s, and allow_pickle is False; allow_pickle=True loads it, if its origin is trusted",
               what);
  return nullptr;
}

// The class of that name, which its module may register when it is imported, or which is a model. Null on failure.
const ClassInfo* class_not_registered(Decoder& decoder, const format::Name& name) {
  PyObject* cls = decoder.global(name);
  if (!cls) {
    const bool is_missing = PyErr_ExceptionMatches(PyExc_ImportError) || PyErr_ExceptionMatches(PyExc_AttributeError) ||
                            PyErr_ExceptionMatches(error_types().pickle_refused);
    if (!is_missing) return nullptr;
    PyErr_Clear();
  }
  const ClassInfo* info = registered_class(name.text);
  if (info) return info;
  info = cls && PyType_Check(cls) ? current_class_info(reinterpret_cast<PyTypeObject*>(cls)) : nullptr;
  if (info && info->shape == ClassShape::kModel) return info;
  if (PyErr_Occurred()) return nullptr;
  const std::string text(name.text);
  if (cls && PyObject_HasAttrString(cls, "__pydantic_core_schema__")) {
    decoder.incompatible(decoder.in.position(),
                         Ref(PyUnicode_FromFormat(
                             "'%.500s' is a model in the message, and has a reduction of its own here", text.c_str())));
    return nullptr;
  }
  PyErr_Format(error_types().pickle_refused, "The message needs '%.500s', which is not registered here", text.c_str());
  return nullptr;
}

}  // namespace

PyObject* decode_namedtuple(Decoder& decoder) {
  const ClassInfo* info = class_of(decoder, ClassShape::kNamedTuple, "namedtuple");
  if (!info) return nullptr;
  const std::uint64_t count = decoder.in.next_count();
  if (decoder.in.failed()) return nullptr;
  if (count != static_cast<std::uint64_t>(info->field_count)) {
    const std::string here = joined(info->field_names.get());
    return decoder.incompatible(
        decoder.in.position(),
        Ref(PyUnicode_FromFormat("'%.500s' has %zd fields here, and %llu in the message. Fields here: %.1000s",
                                 info->name.c_str(), info->field_count, static_cast<unsigned long long>(count),
                                 here.c_str())));
  }
  // What namedtuple's _make() comes to: the class's own __new__ need not take the fields in order.
  Ref made(info->type->tp_alloc(info->type, info->field_count));
#if PY_VERSION_HEX >= 0x030E0000
  if (made) reinterpret_cast<PyTupleObject*>(made.get())->ob_hash = -1;  // not known yet
#endif
  for (Py_ssize_t i = 0; made && i < info->field_count; ++i) {
    PyObject* item = decoder.node();
    if (!item) return nullptr;
    PyTuple_SET_ITEM(made.get(), i, item);
  }
  return made.release();
}

PyObject* decode_dataclass(Decoder& decoder) {
  const std::size_t position = decoder.in.position();
  const ClassInfo* info = class_of(decoder, ClassShape::kDataclass, "dataclass");
  if (!info) return nullptr;
  const std::uint64_t count = decoder.in.next_count();
  Ref nothing(PyTuple_New(0));
  Ref made(nothing ? decoder.corrupt_unless(PyBaseObject_Type.tp_new(info->type, nothing.get(), nullptr),
                                            "a dataclass cannot have instances")
                   : nullptr);
  if (!made) return nullptr;
  decoder.is_there(made.get());
  for (std::uint64_t i = 0; i < count; ++i) {
    Ref field = Ref::borrow(decoder.next_key());
    if (!field || decoder.in.failed()) return nullptr;
    const int known = PyDict_Contains(info->fields.get(), field.get());
    if (known < 0) return nullptr;
    if (known == 0) return other_fields(decoder, *info, position, field.get(), false);
    Ref value(decoder.node());
    // Past any __setattr__ of the class: frozen ones have one that refuses.
    if (!value || PyObject_GenericSetAttr(made.get(), field.get(), value.get()) != 0) return nullptr;
  }
  if (static_cast<Py_ssize_t>(count) < PyDict_GET_SIZE(info->fields.get())) [[unlikely]] {
    PyObject* missing = missing_field(*info, made.get());
    if (missing) return other_fields(decoder, *info, position, missing, true);
  }
  return made.release();
}

PyObject* decode_enum(Decoder& decoder, bool by_value) {
  const std::size_t position = decoder.in.position();
  const ClassInfo* info = class_of(decoder, ClassShape::kEnum, "Enum");
  if (!info) return nullptr;
  if (by_value) {
    const Expansion::Before before = decoder.begin_walked();
    Ref value(decoder.node());
    if (!value || !decoder.may_be_walked(before)) return nullptr;
    PyObject* member = call_python(type_object(info->type), value.get());
    if (member || !PyErr_ExceptionMatches(PyExc_ValueError)) return member;
    return no_member(decoder, *info, position, "'%.500s' has no member of the value %R here", value.get());
  }
  Ref name = Ref::borrow(decoder.next_key());
  Ref members(name ? PyObject_GetAttrString(type_object(info->type), "_member_map_") : nullptr);
  if (!members || decoder.in.failed()) return nullptr;
  Ref member = PyDict_Check(members.get()) ? item_of(members.get(), name.get()) : Ref();
  if (member || PyErr_Occurred()) return member.release();
  return no_member(decoder, *info, position, "'%.500s' has no member '%U' here", name.get());
}

PyObject* decode_global(Decoder& decoder) {
  PyObject* found = decoder.global(decoder.in.next_name());
  if (!found) return nullptr;
  if (!decoder.allow_pickle() && !is_harmless_factory(found)) return refuse("a class or function by name");
  return Py_NewRef(found);
}

PyObject* decode_registered(Decoder& decoder) {
  const std::size_t position = decoder.in.position();
  const format::Name name = decoder.in.next_name();
  if (decoder.in.failed()) return nullptr;
  const ClassInfo* info = registered_class(name.text);
  if (!info) info = class_not_registered(decoder, name);
  if (!info) return nullptr;
  if (info->shape == ClassShape::kModel) {
    Ref state(decoder.node());
    if (!state) return nullptr;
    PyObject* model = call_python(package().model_build, type_object(info->type), state.get());
    if (!model) decoder.note_incompatible(position);
    return model;
  }
  if (info->encode == encode_end) return decode_end(decoder, *info);
  // Held: a registration may be replaced meanwhile.
  Ref unflatten = Ref::borrow(info->unflatten.get());
  Ref flat(decoder.node());
  return flat ? call_python(unflatten.get(), flat.get()) : nullptr;
}

PyObject* decode_pickle(Decoder& decoder, bool is_long) {
  if (!decoder.allow_pickle()) return refuse("a pickle");
  Ref data(is_long ? decode_long_bytes(decoder) : nullptr);
  if (!is_long) {
    const std::string_view bytes = decoder.in.next_string();
    data = Ref(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
  }
  const std::uint64_t count = decoder.in.next_count();
  if (!data || decoder.in.failed()) return nullptr;
  Ref buffers(PyList_New(0));
  for (std::uint64_t i = 0; buffers && i < count; ++i) {
    const Kind kind = format::unmarked(decoder.in.peek_kind());
    const bool is_array = kind == Kind::kArray || kind == Kind::kTensor || kind == Kind::kMaskedArray;
    if (!is_array) return decoder.in.fail("a pickle's buffer is no array"), nullptr;
    Ref buffer(decoder.node());
    if (!buffer || PyList_Append(buffers.get(), buffer.get()) != 0) return nullptr;
  }
  return buffers ? load_pickle(data.get(), buffers.get()).release() : nullptr;
}

}  // namespace shmtree::python
