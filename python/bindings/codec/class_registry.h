// Descriptions of classes: how the bindings send the instances of a class and build them again.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "shmtree/base/kind.h"

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
  kModel,  // a pydantic model: sent as if it were registered
};

// Description of one class. Never freed, so that a walk may use it while Python code runs.
struct ClassInfo {
  PyTypeObject* type = nullptr;  // borrowed; valid while `guard` is alive
  PyObject* guard = nullptr;     // a weak reference to the type
  EncodeHandler* encode = nullptr;
  ClassShape shape = ClassShape::kOther;
  Kind kind = Kind::kInvalid;  // if Python code registered the class for a kind
  std::string name{};          // "module:qualname"
  // CPython's version tag of the class when it was described. CPython changes the tag with the class or one of its
  // bases. 0: none.
  mutable std::atomic<unsigned> version{0};
  // Interned parts of `name` if the qualname has no dots; else null.
  Ref module_name{}, attribute{};

  // kNamedTuple
  Py_ssize_t field_count = 0;
  Ref field_names{};
  // kDataclass: a dict from field names to their numbers, and the names of the fields that are slots
  Ref fields{};
  std::vector<Ref> slots{};
  std::vector<Ref> required{};  // fields that every instance has, but for which the class has no default
  bool has_dict = false;
  // kRegistered
  bool in_channels = false;  // only allowed in messages of channels; unflatten also gets `may_import`
  Ref flatten{};
  Ref unflatten{};
};

// Looks up the standard classes. Returns false with a Python error set.
bool init_class_registry();

// Returns the last known description of the class, which may be outdated: see current_class_info(). Returns null with
// an error set.
const ClassInfo* class_info(PyTypeObject* type);

// Returns the description of the class as it is now. Classifies the class again if it has changed. Returns null with an
// error set.
const ClassInfo* current_class_info(const ClassInfo* cached);

// Result of how_by_name(): kYes if instances of a class that is sent by name can be sent now, and otherwise the reason.
enum class ByName : std::int8_t {
  kError = -1,    // a Python error is set
  kYes,           // the name leads to the class or its registration
  kOtherClass,    // it leads to another class
  kNotFound,      // it leads nowhere
  kOwnReduction,  // a reducer for pickle is registered
};
// Makes the checks that pickle makes for each object. `for_channel`: reducers of multiprocessing count too.
ByName how_by_name(const ClassInfo& info, bool for_channel);

// Returns the class or function "module:qualname". Imports modules, calls a module-level __getattr__ and executes a
// lazily loaded module only if `may_import`. Waits while another thread imports the module. Returns null with
// PickleRefused, ImportError or AttributeError set.
Ref resolve_global(std::string_view name, bool may_import);

// Returns the module of that name without importing it. Waits while another thread imports it. Returns null, without an
// error, if it is not imported, if that import fails, or if it is a lazily loaded module that has not been executed.
Ref imported_module(PyObject* name);

// True if the name leads to exactly this object. Does not wait for a module that another thread is importing. Also
// returns false if a Python error is set that is not ordinary: MemoryError, KeyboardInterrupt.
bool is_found_by_name(PyObject* object, std::string_view name);

// Returns "module:qualname" of a class. Empty if it has none, or if a Python error is set that is not ordinary.
std::string global_name(PyObject* object);

// Implements shmtree.register(). Returns false with TypeError or ValueError set.
bool register_class(PyObject* cls, PyObject* flatten, PyObject* unflatten, bool in_channels = false);
// Registers the class of an end under a fixed name in messages: see encode_end() and decode_end().
bool register_end(PyObject* cls, std::string_view name, PyObject* flatten, PyObject* unflatten);

// Returns the registered class of that name, or null, without an error, if there is none.
const ClassInfo* registered_class(std::string_view name);

// True for a Flag, which has values for all combinations of its named members.
bool is_flag(PyTypeObject* type) noexcept;

// True if the Flag has its own `_missing_`, which decides what a value with unknown bits becomes.
bool maps_unknown_bits(PyTypeObject* type);

// True if the factory may be called even for an untrusted sender: the builtin containers, numbers and strings.
bool is_harmless_factory(PyObject* object);

}  // namespace shmtree::python
