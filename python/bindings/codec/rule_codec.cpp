// Codecs for kinds with objects that Python code splits and rebuilds. Their nodes follow the rules of format/grammar.h.
#include <algorithm>
#include <iterator>

#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "format/grammar.h"

namespace shmtree::python {
namespace {

constexpr std::size_t kMaxParts = 8;

struct Functions {
  PyObject* parts;
  PyObject* build;
  PyObject* copied_bytes;  // null if `build` copies no memory of the message
};
Functions functions_of_kind[256];

const Functions& functions_of(Kind kind) noexcept {
  return functions_of_kind[static_cast<std::uint8_t>(kind)];
}

// The letters of a rule: those that occur once, and the repeated letter, or 0.
struct Rule {
  std::string_view once;
  char repeated;
  std::size_t parts() const noexcept { return once.size() + (repeated != 0); }
  char limit(std::size_t part) const noexcept { return part < limits.size() ? limits[part] : '\0'; }
  std::string_view limits;
};

Rule rule_of(const format::KindRow& row) {
  const std::string_view rule = row.rule;
  const std::size_t star = rule.find('*');
  if (star == std::string_view::npos) return {rule, '\0', row.limits};
  return {rule.substr(0, star), rule[star + 1], row.limits};
}

// True if Python code can produce the parts of this rule.
bool follows(const format::KindRow& row) {
  const std::string_view rule = row.rule;
  const std::size_t star = rule.find('*');
  const bool is_known = rule.find_first_not_of("ILFSBNV*A") == std::string_view::npos;
  const bool has_array = rule.substr(0, star).find('A') != std::string_view::npos;
  const bool is_repeated_once = star == std::string_view::npos || (star + 2 == rule.size() && rule[star + 1] != 'N');
  return is_known && !has_array && is_repeated_once && rule_of(row).parts() <= kMaxParts;
}

// --- Encoding --------------------------------------------------------------------------------------------------------

bool add_part(Encoder& encoder, char letter, PyObject* part) {
  format::FrameBuilder& out = encoder.out;
  switch (letter) {
    case 'I': out.add_int(PyLong_AsLongLong(part)); break;
    case 'L': out.add_length(PyLong_AsUnsignedLongLong(part)); break;
    case 'F': out.add_float(PyFloat_AsDouble(part)); break;
    case 'S': return encoder.string(part);
    case 'N':
      if (!encoder.try_name(part) && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "A name is too long");
      break;
    case 'B': {
      char* bytes = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(part, &bytes, &size) == 0) out.add_string(bytes, static_cast<std::size_t>(size));
      break;
    }
    case 'A':
      if (Py_TYPE(part) == &PyArray_Type) return encoder.segment(as_array(part));
      PyErr_SetString(PyExc_TypeError, "A segment of a message is not an array");
      break;
    // An array that is a part belongs to this node alone, so it is neither marked nor a reference.
    default: return Py_TYPE(part) == &PyArray_Type ? encoder.array_node(as_array(part)) : encoder.child(part);
  }
  return !PyErr_Occurred();
}

bool add_parts(Encoder& encoder, const Rule& rule, PyObject* parts) {
  for (std::size_t i = 0; i < rule.once.size(); ++i) {
    if (!add_part(encoder, rule.once[i], PyTuple_GET_ITEM(parts, i))) return false;
  }
  if (rule.repeated == 0) return true;
  PyObject* items = PyTuple_GET_ITEM(parts, rule.once.size());
  if (!PyTuple_CheckExact(items)) return PyErr_SetString(PyExc_TypeError, "Repeated parts are not a tuple"), false;
  const auto count = static_cast<std::uint64_t>(PyTuple_GET_SIZE(items));
  if (rule.repeated == 'A' && (count == 0 || count > kMaxSegments)) {
    PyErr_Format(PyExc_ValueError, "A CapnpMessage needs 1 to %zu segments", kMaxSegments);
    return false;
  }
  encoder.out.add_length(count);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) {
    if (!add_part(encoder, rule.repeated, PyTuple_GET_ITEM(items, i))) return false;
  }
  return true;
}

bool node_by_rule(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  if (encoder.leaves_out(value)) return true;
  const Rule rule = rule_of(*format::row_of(info.kind));
  Ref parts(call_python(functions_of(info.kind).parts, value));
  if (!parts) return false;
  if (parts.get() == Py_None) return encoder.needs_pickle(value);
  if (!PyTuple_CheckExact(parts.get()) || static_cast<std::size_t>(PyTuple_GET_SIZE(parts.get())) != rule.parts()) {
    PyErr_Format(PyExc_TypeError, "The parts of a %.200s do not match the rule of its kind", Py_TYPE(value)->tp_name);
    return false;
  }
  encoder.keep(Ref::borrow(parts.get()));
  encoder.out.add_kind(info.kind);
  const bool has_children = format::has_trait(info.kind, format::kHasChildren);
  if (has_children && !encoder.enter()) return false;
  if (!encoder.sealed([&] { return add_parts(encoder, rule, parts.get()); })) return encoder.refused_inside(value);
  return !has_children || encoder.leave();
}

// --- Decoding --------------------------------------------------------------------------------------------------------

PyObject* next_part(Decoder& decoder, char letter, char limit) {
  switch (letter) {
    case 'I': return PyLong_FromLongLong(decoder.in.next_int());
    case 'L': return PyLong_FromUnsignedLongLong(decoder.in.next_flags(format::max_of(limit)));
    case 'F': return PyFloat_FromDouble(decoder.in.next_float());
    case 'S': return decode_str(decoder, decoder.in.next_string());
    case 'N': return decode_str(decoder, decoder.in.next_name().text);
    case 'B': {
      const std::string_view bytes = decoder.in.next_string();
      return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    }
    case 'A': return decoder.segment();
    default: break;
  }
  if (!format::is_allowed(decoder.in.peek_kind(), limit)) {
    return decoder.in.fail("a part of a node has an invalid kind"), nullptr;
  }
  return decoder.node();
}

PyObject* next_repeated(Decoder& decoder, char letter) {
  const std::uint64_t count = letter == 'A' ? decoder.in.next_segment_count() : decoder.in.next_count();
  if (decoder.in.failed()) return nullptr;
  Ref items(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::uint64_t i = 0; items && i < count; ++i) {
    PyObject* const item = next_part(decoder, letter, '\0');
    if (!item) return nullptr;
    PyTuple_SET_ITEM(items.get(), static_cast<Py_ssize_t>(i), item);
  }
  if (letter == 'A') decoder.end_segments();
  return decoder.in.failed() ? nullptr : items.release();
}

// Counts the bytes that `build` will copy from the memory of its parts. `parts`: as for PyObject_Vectorcall.
bool may_copy_parts(Decoder& decoder, PyObject* copied_bytes, PyObject* const* parts, std::size_t count) {
  const Ref bytes(decoder.corrupt_unless(without_unwinding([&] {
                                           return PyObject_Vectorcall(copied_bytes, parts,
                                                                      count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
                                         }),
                                         "the parts of a node contradict each other"));
  if (!bytes) return false;
  const std::uint64_t number = PyLong_AsUnsignedLongLong(bytes.get());
  return !PyErr_Occurred() && decoder.may_copy(number);
}

PyObject* decode_by_rule(Decoder& decoder) {
  const std::size_t position = decoder.in.position();
  const Kind kind = decoder.in.kind();
  const Rule rule = rule_of(*format::row_of(kind));
  const std::size_t count = rule.parts();
  Ref parts[kMaxParts];
  const Expansion::Before before = decoder.begin_walked();
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = Ref(i < rule.once.size() ? next_part(decoder, rule.once[i], rule.limit(i))
                                        : next_repeated(decoder, rule.repeated));
    if (!parts[i] || decoder.in.failed()) return nullptr;
  }
  if (!decoder.may_be_walked(before)) return nullptr;
  PyObject* arguments[kMaxParts + 2] = {};  // PyObject_Vectorcall() may use the first element
  for (std::size_t i = 0; i < count; ++i) arguments[i + 1] = parts[i].get();
  arguments[count + 1] = decoder.allow_pickle() ? Py_True : Py_False;
  const Functions& functions = functions_of(kind);
  if (functions.copied_bytes && !decoder.allow_pickle() &&
      !may_copy_parts(decoder, functions.copied_bytes, arguments + 1, count)) {
    decoder.note_incompatible(position);
    return nullptr;
  }
  PyObject* object =
      decoder.corrupt_unless(without_unwinding([&] {
                               return PyObject_Vectorcall(functions.build, arguments + 1,
                                                          (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
                             }),
                             "the parts of a node contradict each other");
  if (!object) decoder.note_incompatible(position);
  return object;
}

}  // namespace

bool add_kind(std::string_view kind, PyObject* cls, PyObject* parts, PyObject* build, PyObject* copied_bytes) {
  const auto row = std::find_if(std::begin(format::kKinds), std::end(format::kKinds),
                                [kind](const format::KindRow& each) { return each.name == kind; });
  if (row == std::end(format::kKinds) || !follows(*row)) {
    PyErr_SetString(PyExc_ValueError, "No kind of that name has a rule for Python code");
    return false;
  }
  if (!PyType_Check(cls) || !PyCallable_Check(parts) || !PyCallable_Check(build) ||
      (copied_bytes && !PyCallable_Check(copied_bytes))) {
    PyErr_SetString(PyExc_TypeError, "A kind needs a class and two or three functions");
    return false;
  }
  Py_INCREF(cls);  // never released
  functions_of_kind[static_cast<std::uint8_t>(row->kind)] = {Py_NewRef(parts), Py_NewRef(build),
                                                             Py_XNewRef(copied_bytes)};
  const KindCodec codec({{row->kind, decode_by_rule}},
                        {{reinterpret_cast<PyTypeObject*>(cls), once<node_by_rule>, row->kind}});
  return true;
}

}  // namespace shmtree::python
