// Decodes instances of classes that are sent by name. Each class found by name is checked before it is used.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bindings/codec/decoder.h"
#include "bindings/codec/describe.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"
#include "platform/text.h"

namespace shmtree::python {

const ClassInfo* Decoder::described_again(const ClassInfo* cached) {
  const ClassInfo* info = current_class_info(cached);
  if (info) tables_.classes.enter(info);
  return info;
}

namespace {

// Returns the class of the next name if it has that shape. Returns null on failure.
const ClassInfo* class_of(Decoder& decoder, ClassShape shape, const char* what) {
  const format::Name name = decoder.in.next_name();
  PyObject* cls = decoder.global(name);
  if (!cls) return nullptr;
  const ClassInfo* info = PyType_Check(cls) ? decoder.described(reinterpret_cast<PyTypeObject*>(cls)) : nullptr;
  if (info && info->shape == shape) return info;
  if (!PyErr_Occurred()) {
    const std::string text = platform::printable(name.text);
    decoder.incompatible(
        decoder.in.position(),
        Ref(PyUnicode_FromFormat("'%.500s' is a %s in the message, but not here", text.c_str(), what)));
  }
  return nullptr;
}

// Joins names with commas. Returns std::nullopt if a Python error is set that is not ordinary.
std::optional<std::string> joined(PyObject* names) {
  std::string text;
  const Ref list(PySequence_List(names));
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i) {
    const char* name = PyUnicode_AsUTF8(PyList_GET_ITEM(list.get(), i));
    if (!name && !clear_ordinary_exception()) return std::nullopt;
    if (i != 0) text += ", ";
    text += name ? name : "?";
  }
  if (!clear_ordinary_exception()) return std::nullopt;
  return text.empty() ? "none" : text;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + platform::printable(name);
  return text.empty() ? "none" : text;
}

// Reports that the class of the instance at node `position` has a field only at the sender or only at the receiver. For
// dataclasses and classes of attrs.
PyObject* other_fields(Decoder& decoder, const ClassInfo& info, std::size_t position, PyObject* field, bool is_here) {
  const std::string sent = joined(facts_of_node(decoder.frame(), position).fields);
  const std::optional<std::string> here = joined(info.fields.get());
  if (!here) return nullptr;
  const char* format = is_here ? "'%.500s' has a field %R here, for which neither the message nor the class has a value"
                               : "'%.500s' has no field %R here, but the message has it";
  const Ref text(PyUnicode_FromFormat(format, info.name.c_str(), field));
  if (!text) return nullptr;
  return decoder.incompatible(
      position, Ref(PyUnicode_FromFormat("%U. Fields in the message: %.1000s; fields here: %.1000s", text.get(),
                                         sent.c_str(), here->c_str())));
}

// Remembers which fields of one instance have been read.
class SeenFields {
 public:
  // Returns false if the field with this number has been read before.
  bool note(std::size_t number) {
    if (number >= kBits) [[unlikely]]
      return others_.insert(number).second;
    const std::uint64_t bit = std::uint64_t{1} << number;
    return (std::exchange(first_, first_ | bit) & bit) == 0;
  }

 private:
  static constexpr std::size_t kBits = 64;
  std::uint64_t first_ = 0;
  std::set<std::size_t> others_{};
};

// Returns the first required field that `made` lacks. Returns null if it lacks none, or with a Python error set that is
// not ordinary.
PyObject* missing_field(const ClassInfo& info, PyObject* object) {
  for (const Ref& name : info.required) {
    const Ref value(PyObject_GenericGetAttr(object, name.get()));
    if (value) continue;
    return clear_ordinary_exception() ? name.get() : nullptr;
  }
  return nullptr;
}

// Reports that the Enum in this process lacks the member at node `position`. `what`: the member's name or value.
// `cause`: the exception of its lookup. Call it with no Python error set.
PyObject* no_member(Decoder& decoder, const ClassInfo& info, std::size_t position, const char* format, PyObject* what,
                    Ref cause = Ref()) {
  const Ref members(PyObject_GetAttrString(type_object(info.type), "_member_map_"));
  if (!members && !clear_ordinary_exception()) return nullptr;
  const std::optional<std::string> here = members ? joined(members.get()) : "?";
  const Ref text(here ? PyUnicode_FromFormat(format, info.name.c_str(), what) : nullptr);
  if (!text) return nullptr;
  return decoder.incompatible(
      position, Ref(PyUnicode_FromFormat("%U. Members here: %.1000s", text.get(), here->c_str())), std::move(cause));
}

PyObject* refuse(const char* what) {
  PyErr_Format(error_types().pickle_refused,
               "The message contains %s, and allow_pickle is False: pass allow_pickle=True if you trust its origin",
               what);
  return nullptr;
}

// Returns the class of that name if it is a model, or if its module registers it during the import. Returns null on
// failure.
const ClassInfo* class_not_registered(Decoder& decoder, const format::Name& name) {
  PyObject* cls = decoder.global_or_error(name);
  if (!cls) {
    if (!is_failed_lookup() && !PyErr_ExceptionMatches(error_types().pickle_refused)) return nullptr;
    PyErr_Clear();
  }
  const ClassInfo* info = registered_class(name.text);
  if (info) return info;
  info = cls && PyType_Check(cls) ? decoder.described(reinterpret_cast<PyTypeObject*>(cls)) : nullptr;
  if (info && info->shape == ClassShape::kModel) return info;
  if (PyErr_Occurred()) return nullptr;
  const std::string text = platform::printable(name.text);
  const Ref schema(cls ? PyObject_GetAttrString(cls, "__pydantic_core_schema__") : nullptr);
  if (!clear_ordinary_exception()) return nullptr;
  if (schema) {
    decoder.incompatible(
        decoder.in.position(),
        Ref(PyUnicode_FromFormat("'%.500s' is a model in the message, but has its own __reduce__ here", text.c_str())));
    return nullptr;
  }
  PyErr_Format(error_types().pickle_refused,
               "The message needs '%.500s', which is not registered here: call shmtree.register() for it",
               text.c_str());
  return nullptr;
}

// Maximum bits in the value of a new Flag member. The limit exists because the class may check each bit.
constexpr std::uint64_t kMaxFlagBits = 512;
// Maximum unnamed members that messages may add to a Flag. The class keeps every member that was ever made.
constexpr Py_ssize_t kMaxFlags = 4096;

// Returns a new reference to an Enum's map from values to members. Returns null if it has none, or with a Python error
// set that is not ordinary.
Ref members_by_value(PyTypeObject* type) {
  Ref members(PyObject_GetAttrString(type_object(type), "_value2member_map_"));
  if (!members) clear_ordinary_exception();
  return members && PyDict_Check(members.get()) ? std::move(members) : Ref();
}

// Also returns false with a Python error set that is not ordinary.
bool is_flag_value(PyObject* value) {
  if (!PyLong_CheckExact(value)) return false;
  Ref bits(PyObject_CallMethod(value, "bit_length", nullptr));
  const bool fits = bits && PyLong_AsUnsignedLongLong(bits.get()) <= kMaxFlagBits;
  return clear_ordinary_exception() && fits;
}

// True if the member is one of the named members of the class. Also returns false with a Python error set that is not
// ordinary.
bool is_named(PyTypeObject* type, PyObject* member) {
  const Ref name(PyObject_GetAttrString(member, "_name_"));
  const Ref named(name ? PyObject_GetAttrString(type_object(type), "_member_map_") : nullptr);
  const Ref found = named && PyDict_Check(named.get()) ? item_of(named.get(), name.get()) : Ref();
  return clear_ordinary_exception() && found.get() == member;
}

// Removes the entry of `value` if it leads to `member`, and then returns true. Otherwise returns false, with a Python
// error set if it is not an ordinary one (is_ordinary_exception).
bool forget(PyObject* members, PyObject* value, PyObject* member) {
  const bool is_removed = item_of(members, value).get() == member && PyDict_DelItem(members, value) == 0;
  return clear_ordinary_exception() && is_removed;
}

// Removes a new member of an IntFlag from the class. The call that made it added `added` entries: one for `value`, and
// another for the member's own value if the member is new and the two values differ. Returns false with a Python error
// set if it is not an ordinary one.
bool take_back(PyTypeObject* type, PyObject* members, Py_ssize_t added, PyObject* value, PyObject* member) {
  if (added > 0 && forget(members, value, member)) --added;
  if (added <= 0 || PyErr_Occurred() || is_named(type, member) || PyErr_Occurred()) return !PyErr_Occurred();
  const Ref own(PyObject_GetAttrString(member, "_value_"));
  if (own) forget(members, own.get(), member);
  return clear_ordinary_exception();
}

// Makes the member of a Flag for a new value. The class keeps such a member forever, unless it is an IntFlag: its
// members are compared as ints, so the new one is removed from the class again.
PyObject* new_flag(Decoder& decoder, PyTypeObject* type, PyObject* members, PyObject* value) {
  if (!is_flag_value(value)) {
    if (!PyErr_Occurred()) decoder.in.fail("a Flag has an invalid value");
    return nullptr;
  }
  const Py_ssize_t before = PyDict_GET_SIZE(members);
  const bool may_go = PyType_IsSubtype(type, &PyLong_Type);
  if (!may_go && before >= kMaxFlags) return decoder.in.fail("a Flag has too many unnamed members"), nullptr;
  Ref member(call_python(type_object(type), value));
  const bool goes = member && may_go;
  if (goes && !take_back(type, members, PyDict_GET_SIZE(members) - before, value, member.get())) return nullptr;
  return member.release();
}

// True if the Flag dropped bits of `value` when it made the member, as with the boundary CONFORM, the default of Python
// 3.11.0 to 3.11.3. Also returns false with a Python error set that is not ordinary.
bool has_dropped_bits(PyTypeObject* type, PyObject* value, PyObject* member) {
  if (!is_flag(type) || !PyLong_CheckExact(value) || maps_unknown_bits(type)) return false;
  int overflow = 0;
  const bool is_negative = PyLong_AsLongLongAndOverflow(value, &overflow) < 0 && overflow == 0;
  if (is_negative || overflow < 0) return false;  // a negative value means all bits except some
  const Ref kept(PyObject_GetAttrString(member, "_value_"));
  const bool is_other = kept && PyObject_RichCompareBool(kept.get(), value, Py_EQ) == 0;
  return clear_ordinary_exception() && is_other;
}

// Formats a value for an error message. Values in a message may be of any size, so only short ones are shown.
Ref shown(PyObject* value) {
  int overflow = 0;
  if (PyLong_CheckExact(value)) PyLong_AsLongLongAndOverflow(value, &overflow);
  const bool is_short =
      PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || (PyLong_CheckExact(value) && overflow == 0);
  return is_short ? Ref(PyUnicode_FromFormat("the value %.100R", value))
                  : Ref(PyUnicode_FromFormat("that value, of type %.100s,", Py_TYPE(value)->tp_name));
}

// Returns the member with that value. `position`: node that error messages name.
PyObject* member_of_value(Decoder& decoder, const ClassInfo& info, std::size_t position, PyObject* value) {
  PyTypeObject* type = info.type;
  const Ref members = decoder.allow_pickle() ? Ref() : members_by_value(type);
  if (members) {
    Ref existing = item_of(members.get(), value);
    if (existing) return existing.release();
    if (!clear_ordinary_exception()) return nullptr;  // the value has no hash: let the class search its members
  }
  if (PyErr_Occurred()) return nullptr;
  const bool is_new_flag = members && is_flag(type);
  Ref member(is_new_flag ? new_flag(decoder, type, members.get(), value) : call_python(type_object(type), value));
  if (member && !has_dropped_bits(type, value, member.get())) return PyErr_Occurred() ? nullptr : member.release();
  // A class without the value raises ValueError, TypeError if it has no members at all, or whatever its _missing_
  // raises, for example for a value that has no hash.
  Ref cause;
  if (!member) {
    if (!PyErr_Occurred() || !is_ordinary_exception()) return nullptr;
    const bool says_no_more = PyErr_ExceptionMatches(PyExc_ValueError);  // its text may be large
    cause = take_exception();
    if (says_no_more) cause = Ref();
  }
  const Ref text = shown(value);
  if (!text) return nullptr;
  return no_member(decoder, info, position, "'%.500s' has no member of %U here", text.get(), std::move(cause));
}

// True if a message from this source may contain instances of the class. Returns false with an error set.
bool may_come(Decoder& decoder, const ClassInfo& info) {
  if (!info.in_channels || decoder.context().for_channel || decoder.allow_pickle()) return true;
  PyErr_Format(error_types().pickle_refused,
               "The frame contains a '%.500s': without allow_pickle=True, only messages of channels may contain one",
               info.name.c_str());
  return false;
}

PyObject* decode_namedtuple(Decoder& decoder) {
  const ClassInfo* info = class_of(decoder, ClassShape::kNamedTuple, "namedtuple");
  if (!info) return nullptr;
  const std::uint64_t count = decoder.in.next_count();
  if (decoder.in.failed()) return nullptr;
  if (count != static_cast<std::uint64_t>(info->field_count)) {
    const std::optional<std::string> here = joined(info->field_names.get());
    if (!here) return nullptr;
    return decoder.incompatible(
        decoder.in.position(),
        Ref(PyUnicode_FromFormat("'%.500s' has %zd fields here, but %llu in the message. Fields here: %.1000s",
                                 info->name.c_str(), info->field_count, static_cast<unsigned long long>(count),
                                 here->c_str())));
  }
  // Does the same as namedtuple's _make(). The class's own __new__ may take other arguments than the fields in order.
  Ref object(info->type->tp_alloc(info->type, info->field_count));
#if PY_VERSION_HEX >= 0x030E0000
  if (object) reinterpret_cast<PyTupleObject*>(object.get())->ob_hash = -1;  // the hash was not computed yet
#endif
  for (Py_ssize_t i = 0; object && i < info->field_count; ++i) {
    PyObject* item = decoder.node();
    if (!item) return nullptr;
    PyTuple_SET_ITEM(object.get(), i, item);
  }
  return object.release();
}

PyObject* decode_dataclass(Decoder& decoder) {
  const std::size_t position = decoder.in.position();
  const ClassInfo* info = class_of(decoder, ClassShape::kDataclass, "dataclass");
  if (!info) return nullptr;
  const std::uint64_t count = decoder.in.next_count();
  Ref nothing(PyTuple_New(0));
  Ref object(nothing ? decoder.corrupt_unless(PyBaseObject_Type.tp_new(info->type, nothing.get(), nullptr),
                                              "a dataclass cannot have instances")
                     : nullptr);
  if (!object) return nullptr;
  decoder.add_container(object.get());
  SeenFields seen;
  for (std::uint64_t i = 0; i < count; ++i) {
    Ref field = Ref::borrow(decoder.next_key());
    if (!field || decoder.in.failed()) return nullptr;
    const Ref number = item_of(info->fields.get(), field.get());
    if (!number) {
      return PyErr_Occurred() ? nullptr : other_fields(decoder, *info, position, field.get(), false);
    }
    // Refuses a repeated field, since otherwise the check of `count` below would miss an absent field.
    if (!seen.note(PyLong_AsSize_t(number.get()))) return decoder.in.fail("an instance has a field twice"), nullptr;
    Ref value(decoder.node());
    // Bypasses the class's __setattr__, since that of a frozen class raises.
    if (!value || PyObject_GenericSetAttr(object.get(), field.get(), value.get()) != 0) return nullptr;
  }
  if (static_cast<Py_ssize_t>(count) < PyDict_GET_SIZE(info->fields.get())) [[unlikely]] {
    PyObject* missing = missing_field(*info, object.get());
    if (missing) return other_fields(decoder, *info, position, missing, true);
    if (PyErr_Occurred()) return nullptr;
  }
  return object.release();
}

template <bool by_value>
PyObject* decode_enum(Decoder& decoder) {
  const std::size_t position = decoder.in.position();
  const ClassInfo* info = class_of(decoder, ClassShape::kEnum, "Enum");
  if (!info) return nullptr;
  if constexpr (by_value) {
    const Expansion::Before before = decoder.begin_walked();
    Ref value(decoder.node());
    if (!value || !decoder.may_be_walked(before)) return nullptr;
    return member_of_value(decoder, *info, position, value.get());
  }
  Ref name = Ref::borrow(decoder.next_key());
  Ref members(name ? PyObject_GetAttrString(type_object(info->type), "_member_map_") : nullptr);
  if (!members || decoder.in.failed()) return nullptr;
  Ref member = PyDict_Check(members.get()) ? item_of(members.get(), name.get()) : Ref();
  if (member || PyErr_Occurred()) return member.release();
  return no_member(decoder, *info, position, "'%.500s' has no member %R here", name.get());
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
  if (info->encode == once<encode_end>) return decode_end(decoder, *info);
  if (!may_come(decoder, *info)) return nullptr;
  // Takes a reference, because the program may replace the registration meanwhile.
  Ref unflatten = Ref::borrow(info->unflatten.get());
  Ref flat(decoder.node());
  if (!flat) return nullptr;
  PyObject* object = info->in_channels
                         ? call_python(unflatten.get(), flat.get(), decoder.allow_pickle() ? Py_True : Py_False)
                         : call_python(unflatten.get(), flat.get());
  if (!object) decoder.note_incompatible(position);
  return object;
}

// Converts the current exception to IncompatibleMessage if it says that this process lacks something that the pickle
// names: an ImportError, or an AttributeError of the unpickler itself. An AttributeError with a traceback comes from
// code of the object and stays.
PyObject* explain_lacking(Decoder& decoder, std::size_t position) {
  if (!is_failed_lookup()) return nullptr;
  const bool has_no_module = PyErr_ExceptionMatches(PyExc_ImportError);
  Ref cause = take_exception();
  const Ref traceback(PyException_GetTraceback(cause.get()));
  if (traceback && !has_no_module) return set_exception(std::move(cause)), nullptr;
  const Ref text(
      PyUnicode_FromFormat("The pickle in the message needs an object that this process lacks (%.500S)", cause.get()));
  return decoder.incompatible(position, text, std::move(cause));
}

template <bool is_long>
PyObject* decode_pickle(Decoder& decoder) {
  if (!decoder.allow_pickle()) return refuse("a pickle");
  const std::size_t position = decoder.in.position();
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
    if (!is_array) return decoder.in.fail("a pickle's buffer is not an array"), nullptr;
    Ref buffer(decoder.node());
    if (!buffer || PyList_Append(buffers.get(), buffer.get()) != 0) return nullptr;
  }
  if (!buffers) return nullptr;
  PyObject* object = load_pickle(data.get(), buffers.get()).release();
  return object ? object : explain_lacking(decoder, position);
}

const KindCodec classes_codec({{Kind::kNamedTuple, decode_namedtuple},
                               {Kind::kDataclass, decode_dataclass},
                               {Kind::kEnum, decode_enum<false>},
                               {Kind::kEnumValue, decode_enum<true>},
                               {Kind::kGlobal, decode_global},
                               {Kind::kRegistered, decode_registered},
                               {Kind::kPickle, decode_pickle<false>},
                               {Kind::kLongPickle, decode_pickle<true>}},
                              {});

}  // namespace
}  // namespace shmtree::python
