// What the bindings know about each class: how its instances are sent, and how they are built again.
//
// All calls need the GIL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

class Encoder;
struct ClassInfo;

// Encodes one object of exactly the class of `info`. See Encoder for what false means.
using EncodeHandler = bool(Encoder& encoder, PyObject* object, const ClassInfo& info);

enum class ClassShape : std::uint8_t {
  kOther,
  kNamedTuple,
  kDataclass,
  kEnum,
  kRegistered,
  kModel,  // of pydantic: sent as if it were registered
};

// Never destroyed, so that a walk may hold on to one while Python code runs.
struct ClassInfo {
  PyTypeObject* type = nullptr;  // borrowed; `guard` tells whether it still lives
  PyObject* guard = nullptr;     // a weak reference to it
  EncodeHandler* encode = nullptr;
  ClassShape shape = ClassShape::kOther;
  bool found_by_name = false;  // its module has it under its name, or it is registered
  std::string name{};          // "module:qualname"

  // kNamedTuple
  Py_ssize_t field_count = 0;
  // kDataclass: the names of its fields (dict to None), and of those that live in slots
  Ref fields{};
  std::vector<Ref> slots{};
  bool has_dict = false;
  // kRegistered
  Ref flatten{};
  Ref unflatten{};
};

// Looks the standard classes up. False with a Python error set.
bool init_class_registry();

// Null with a Python error set.
const ClassInfo* class_info(PyTypeObject* type);

// The class or function called "module:qualname". Modules that are not imported yet are imported only when
// `may_import`, and only then module-level __getattr__ is asked. Null with PickleRefused, ImportError or AttributeError
// set.
Ref resolve_global(std::string_view name, bool may_import);

// Whether resolve_global() would find exactly this object.
bool is_found_by_name(PyObject* object, std::string_view name);

// "module:qualname" of a class; empty, without an error, when it has none.
std::string global_name(PyObject* object);

// shmtree.register. False with TypeError or ValueError set.
bool register_class(PyObject* cls, PyObject* flatten, PyObject* unflatten);
// The same of an end, whose name in messages is given: encode_end() and decode_end().
bool register_end(PyObject* cls, std::string_view name, PyObject* flatten, PyObject* unflatten);

// The registered class of that name, null without an error when there is none.
const ClassInfo* registered_class(std::string_view name);

// Whether calling it without arguments is harmless whoever asks: builtin containers, numbers and strings.
bool is_harmless_factory(PyObject* object);

}  // namespace shmtree::python
