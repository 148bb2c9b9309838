// What the bindings know about each class: how its instances are sent, and how they are built again.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "shmtree/kind.h"

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
  Kind kind = Kind::kInvalid;  // if Python code registered the class for a kind
  std::string name{};          // "module:qualname"
  // Version of the described class. CPython changes it whenever the class or one of its bases changes. 0: none.
  mutable std::atomic<unsigned> version{0};
  // Interned parts of `name` if the qualname has no dots; else null.
  Ref module_name{}, attribute{};

  // kNamedTuple
  Py_ssize_t field_count = 0;
  Ref field_names{};
  // kDataclass: the names of its fields with their numbers (a dict), and the names of fields in slots
  Ref fields{};
  std::vector<Ref> slots{};
  std::vector<Ref> required{};  // fields that every instance has, and the class has no value for
  bool has_dict = false;
  // kRegistered
  bool in_channels = false;  // only messages of channels carry it; unflatten also gets `may_import`
  Ref flatten{};
  Ref unflatten{};
};

// Looks the standard classes up. False with a Python error set.
bool init_class_registry();

// Returns the last known description of the class, possibly outdated: see current_class_info(). Null with an error set.
const ClassInfo* class_info(PyTypeObject* type);

// Returns the description of the class as it is now: classifies it again if it has changed. Null with an error set.
const ClassInfo* current_class_info(const ClassInfo* known);

// Whether instances of a class that travels by name can be sent now, and if not, why.
enum class ByName : std::int8_t {
  kError = -1,    // a Python error is set
  kYes,           // the name leads to the class, or to its registration
  kOtherClass,    // the name leads to another class, or to the registration of one
  kNotFound,      // the name leads nowhere
  kOwnReduction,  // the program has registered a reducer for pickle
};
// Makes the checks that pickle makes for each object. `for_channel`: reducers of multiprocessing count too.
ByName how_by_name(const ClassInfo& info, bool for_channel);

// The class or function called "module:qualname". Only if `may_import`, this imports modules, calls a module-level
// __getattr__, or executes a lazily loaded module. Waits while another thread imports the module. Null with
// PickleRefused, ImportError or AttributeError set.
Ref resolve_global(std::string_view name, bool may_import);

// Returns the module of that name, without importing it. Waits while another thread imports it. Null, without an error,
// if it is not imported, if that import fails, or if it is a lazily loaded module that has not been executed.
Ref imported_module(PyObject* name);

// True if the name leads to exactly this object. Does not wait for a module that another thread is importing. False
// also if a Python error is set that is not ordinary: MemoryError, KeyboardInterrupt.
bool is_found_by_name(PyObject* object, std::string_view name);

// Returns "module:qualname" of a class. Empty if it has none, or if a Python error is set that is not ordinary.
std::string global_name(PyObject* object);

// shmtree.register. False with TypeError or ValueError set.
bool register_class(PyObject* cls, PyObject* flatten, PyObject* unflatten, bool in_channels = false);
// The same of an end, whose name in messages is given: encode_end() and decode_end().
bool register_end(PyObject* cls, std::string_view name, PyObject* flatten, PyObject* unflatten);

// The registered class of that name, null without an error when there is none.
const ClassInfo* registered_class(std::string_view name);

// True for a Flag: its members are the named ones and all their combinations.
bool is_flag(PyTypeObject* type) noexcept;

// True if the Flag has a `_missing_` of its own, which says what a value with unknown bits becomes.
bool maps_unknown_bits(PyTypeObject* type);

// Whether calling it without arguments is harmless whoever asks: builtin containers, numbers and strings.
bool is_harmless_factory(PyObject* object);

}  // namespace shmtree::python
