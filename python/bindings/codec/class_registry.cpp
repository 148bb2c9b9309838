#include "bindings/codec/class_registry.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>

#include "bindings/codec/class_shapes.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "platform/flat_table.h"
#include "platform/never_destroyed.h"
#include "platform/text.h"

namespace shmtree::python {
namespace {

// Protects both tables.
Mutex tables_mutex;

std::unordered_map<PyTypeObject*, ClassInfo*>& table() {
  return platform::never_destroyed<std::unordered_map<PyTypeObject*, ClassInfo*>>();
}

std::map<std::string, const ClassInfo*, std::less<>>& registered_by_name() {
  return platform::never_destroyed<std::map<std::string, const ClassInfo*, std::less<>>>();
}

// Cache of the last used entries, by address.
constexpr std::size_t kRecentSlots = 64;
std::atomic<ClassInfo*> recent[kRecentSlots];

std::atomic<ClassInfo*>& recent_slot(PyTypeObject* type) noexcept {
  return recent[platform::slot_of_address<kRecentSlots>(type)];
}

// A new class may have the address of a freed one, so the address alone does not identify the class.
bool is_current(const ClassInfo* info) {
  if (!info->guard) return true;
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* alive = nullptr;
  const bool found = PyWeakref_GetRef(info->guard, &alive) == 1;
  Py_XDECREF(alive);
  return found;
#else
  return PyWeakref_GET_OBJECT(info->guard) == type_object(info->type);
#endif
}

bool set_guard(ClassInfo* info) {
  if (!(info->type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return true;
  info->guard = PyWeakref_NewRef(type_object(info->type), nullptr);
  return info->guard != nullptr;
}

unsigned version_of(const PyTypeObject* type) noexcept {
  return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
}

// Also returns false if a Python error is set that is not ordinary.
bool is_same(PyObject* one, PyObject* other) {
  if (one == other) return true;
  const int same = one && other ? PyObject_RichCompareBool(one, other, Py_EQ) : 0;
  if (same < 0) clear_ordinary_exception();
  return same == 1;
}

bool is_same(const std::vector<Ref>& one, const std::vector<Ref>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const Ref& a, const Ref& b) { return is_same(a.get(), b.get()); });
}

// True if instances of both classes are sent and built in the same way. Also returns false if a Python error is set.
bool is_same(const ClassInfo& one, const ClassInfo& other) {
  return one.encode == other.encode && one.shape == other.shape && one.name == other.name &&
         one.field_count == other.field_count && one.has_dict == other.has_dict &&
         is_same(one.fields.get(), other.fields.get()) && is_same(one.field_names.get(), other.field_names.get()) &&
         is_same(one.slots, other.slots) && is_same(one.required, other.required);
}

void drop(ClassInfo* info) {
  Py_XDECREF(info->guard);
  delete info;
}

// Stores `info`. Never frees the replaced entry, because a walk of another thread may be using it. Stores a
// registration by name first: every thread can build the instances that another thread sends as registered.
void store(ClassInfo* info) {
  const std::lock_guard guard(tables_mutex);
  if (info->shape == ClassShape::kRegistered) registered_by_name()[info->name] = info;
  table()[info->type] = info;
  recent_slot(info->type).store(info, std::memory_order_release);  // publishes the contents of *info
}

// Stores `made` and returns it. If another thread has stored or registered the class meanwhile, returns that entry.
ClassInfo* store_first(ClassInfo* info) {
  const std::lock_guard guard(tables_mutex);
  ClassInfo*& stored = table()[info->type];
  if (!stored || !is_current(stored)) stored = info;
  recent_slot(info->type).store(stored, std::memory_order_release);
  return stored;
}

// Replaces `known` by `made`, unless another thread has replaced it already. Returns the entry that is stored now.
const ClassInfo* replace(const ClassInfo* cached, ClassInfo* info) {
  const std::lock_guard guard(tables_mutex);
  ClassInfo*& stored = table()[info->type];
  if (stored == cached) stored = info;
  recent_slot(info->type).store(stored, std::memory_order_release);
  return stored;
}

ClassInfo* find(PyTypeObject* type) {
  const std::lock_guard guard(tables_mutex);
  const auto found = table().find(type);
  return found == table().end() ? nullptr : found->second;
}

// Resolves one part of a qualified name without running Python code. Returns null, without an error, if it does not
// exist.
Ref member_of(PyObject* scope, PyObject* name) {
  if (PyModule_Check(scope)) return item_of(PyModule_GetDict(scope), name);
  if (PyType_Check(scope)) return class_member(reinterpret_cast<PyTypeObject*>(scope), name);
  return Ref();
}

Ref string_of(std::string_view text) {
  return Ref(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
}

Ref interned(std::string_view text) {
  PyObject* text_object = string_of(text).release();
  if (text_object) PyUnicode_InternInPlace(&text_object);
  return Ref(text_object);
}

PyObject* interned_reduce = nullptr;
PyObject* interned_spec = nullptr;
PyObject* interned_initializing = nullptr;

// Returns false with a Python error set.
bool split_name(ClassInfo& info) {
  const std::string_view name = info.name;
  const std::size_t colon = name.find(':');
  if (name.size() > kMaxNameBytes || colon == name.npos || name.find('.', colon) != name.npos) return true;
  info.module_name = interned(name.substr(0, colon));
  info.attribute = interned(name.substr(colon + 1));
  return info.module_name && info.attribute;
}

void refuse(const char* why, std::string_view name) {
  const std::string text = platform::printable(name);
  PyErr_Format(error_types().pickle_refused, "The message needs '%.500s', %s, and allow_pickle is False", text.c_str(),
               why);
}

// Follows the dots of `qualname`, starting at `module`.
Ref walk_qualname(Ref module, std::string_view qualname, std::string_view whole, bool may_import) {
  Ref scope = std::move(module);
  while (scope && !qualname.empty()) {
    const std::size_t dot = qualname.find('.');
    Ref part = string_of(qualname.substr(0, dot));
    if (!part) return Ref();
    if (may_import) {
      scope = Ref(PyObject_GetAttr(scope.get(), part.get()));
    } else {
      scope = member_of(scope.get(), part.get());
      if (!scope && !PyErr_Occurred()) refuse("which its module does not contain", whole);
    }
    qualname = dot == std::string_view::npos ? std::string_view() : qualname.substr(dot + 1);
  }
  return scope;
}

// Selects what a lookup does while another thread imports the module: wait, or use the module in its current state.
enum class Importing : bool { kWait, kTakeAsItIs };

// True while a thread executes the code of the module. Also returns false if a Python error is set that is not
// ordinary. Reads no attribute of the module, since that makes a LazyLoader execute it.
bool is_being_imported(PyObject* module) {
  const Ref spec = PyModule_Check(module) ? item_of(PyModule_GetDict(module), interned_spec) : Ref();
  const Ref initializing(spec ? PyObject_GetAttr(spec.get(), interned_initializing) : nullptr);
  return clear_ordinary_exception() && initializing.get() == Py_True;
}

// True if PyImport_GetModule() is allowed. It reads an attribute of the module, which runs code of the module only if
// its type has its own __getattribute__.
bool may_wait_for(PyObject* module, bool may_import) {
  return may_import || Py_TYPE(module)->tp_getattro == PyModule_Type.tp_getattro;
}

// Returns the module in its current state from sys.modules. Returns null, without an error, if it is missing.
Ref known_module(PyObject* name, bool may_import, Importing importing) {
  PyObject* modules = PyImport_GetModuleDict();
  Ref module = item_of(modules, name);
  if (module && importing == Importing::kWait && is_being_imported(module.get()) &&
      may_wait_for(module.get(), may_import)) {
    const Ref waited_for(without_unwinding([name] { return PyImport_GetModule(name); }));
    if (!waited_for && PyErr_Occurred()) return Ref();
    module = item_of(modules, name);  // a failed import removes the module
  }
  return PyErr_Occurred() ? Ref() : std::move(module);
}

// Returns the module. Imports it if `may_import`. Returns null with an error set. A refusal contains the full name
// `whole`.
Ref module_named(PyObject* name, std::string_view whole, bool may_import, Importing importing) {
  Ref module = known_module(name, may_import, importing);
  if (module || PyErr_Occurred()) return module;
  if (!may_import) return refuse("of a module that this process has not imported", whole), Ref();
  return Ref(without_unwinding([name] { return PyImport_Import(name); }));
}

Ref resolve(std::string_view name, bool may_import, Importing importing) {
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == name.size()) {
    PyErr_SetString(error_types().corrupt_message, "The name of a class is not of the form 'module:qualname'");
    return Ref();
  }
  const Ref module_name = string_of(name.substr(0, colon));
  if (!module_name) return Ref();
  return walk_qualname(module_named(module_name.get(), name, may_import, importing), name.substr(colon + 1), name,
                       may_import);
}

}  // namespace

bool init_class_registry() {
  interned_reduce = interned("__reduce_ex__").release();
  interned_spec = interned("__spec__").release();
  interned_initializing = interned("_initializing").release();
  return interned_reduce && interned_spec && interned_initializing && init_class_shapes();
}

namespace {

// Describes the class as it is now. Returns null with a Python error set.
ClassInfo* made_info(PyTypeObject* type) {
  auto* info = new ClassInfo();
  info->type = type;
  // The lookup makes CPython assign a version number, so that every later change of the class gives another number.
  const bool has_version = class_member(type, interned_reduce) || !PyErr_Occurred();
  info->version.store(version_of(type), std::memory_order_relaxed);
  info->name = global_name(type_object(type));
  if (has_version && !PyErr_Occurred() && split_name(*info) && classify(*info) && set_guard(info)) return info;
  drop(info);
  return nullptr;
}

}  // namespace

const ClassInfo* current_class_info(const ClassInfo* cached) {
  if (!cached->guard || cached->shape == ClassShape::kRegistered) return cached;
  const unsigned version = version_of(cached->type);
  if (version != 0 && version == cached->version.load(std::memory_order_relaxed)) [[likely]]
    return cached;
  ClassInfo* rebuilt = made_info(cached->type);
  if (!rebuilt) return nullptr;
  const bool is_unchanged = is_same(*rebuilt, *cached);
  if (PyErr_Occurred()) return drop(rebuilt), nullptr;
  if (is_unchanged) {
    cached->version.store(rebuilt->version.load(std::memory_order_relaxed), std::memory_order_relaxed);
    drop(rebuilt);
    return cached;
  }
  const ClassInfo* stored = replace(cached, rebuilt);
  if (stored != rebuilt) drop(rebuilt);
  return stored;
}

ByName how_by_name(const ClassInfo& info, bool for_channel) {
  if (info.shape == ClassShape::kRegistered) {
    return registered_class(info.name) == &info ? ByName::kYes : ByName::kOtherClass;
  }
  const int own = has_reducer(info.type, for_channel);
  if (own != 0) return own < 0 ? ByName::kError : ByName::kOwnReduction;
  Ref found;
  if (info.attribute) {
    const Ref module = item_of(PyImport_GetModuleDict(), info.module_name.get());
    if (module && PyModule_Check(module.get())) found = item_of(PyModule_GetDict(module.get()), info.attribute.get());
  } else if (!info.name.empty() && info.name.size() <= kMaxNameBytes) {
    found = resolve(info.name, false, Importing::kTakeAsItIs);
  }
  if (!clear_ordinary_exception()) return ByName::kError;
  if (found.get() == type_object(info.type)) [[likely]]
    return ByName::kYes;
  return found && PyType_Check(found.get()) ? ByName::kOtherClass : ByName::kNotFound;
}

const ClassInfo* class_info(PyTypeObject* type) {
  ClassInfo* cached = recent_slot(type).load(std::memory_order_acquire);
  if (cached && cached->type == type && is_current(cached)) [[likely]]
    return cached;
  cached = find(type);
  if (cached && is_current(cached)) {
    recent_slot(type).store(cached, std::memory_order_release);
    return cached;
  }
  ClassInfo* built = made_info(type);
  if (!built) return nullptr;
  cached = store_first(built);
  if (cached != built) drop(built);
  return cached;
}

Ref imported_module(PyObject* name) {
  Ref module = known_module(name, false, Importing::kWait);
  return module && may_wait_for(module.get(), false) ? std::move(module) : Ref();
}

Ref resolve_global(std::string_view name, bool may_import) {
  return resolve(name, may_import, Importing::kWait);
}

bool is_found_by_name(PyObject* object, std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  const Ref found = resolve(name, false, Importing::kTakeAsItIs);
  return clear_ordinary_exception() && found.get() == object;
}

std::string global_name(PyObject* object) {
  Ref module(PyObject_GetAttrString(object, "__module__"));
  Ref qualname(module ? PyObject_GetAttrString(object, "__qualname__") : nullptr);
  Py_ssize_t module_bytes = 0, qualname_bytes = 0;
  const char* module_text =
      qualname && PyUnicode_Check(module.get()) ? PyUnicode_AsUTF8AndSize(module.get(), &module_bytes) : nullptr;
  const char* qualname_text = module_text && PyUnicode_Check(qualname.get())
                                  ? PyUnicode_AsUTF8AndSize(qualname.get(), &qualname_bytes)
                                  : nullptr;
  if (!qualname_text) {
    clear_ordinary_exception();
    return std::string();
  }
  std::string name(module_text, static_cast<std::size_t>(module_bytes));
  // spawn and forkserver name the main module of a child `__mp_main__`, and `__main__` is the same module there.
  if (name == "__mp_main__") name = "__main__";
  name += ':';
  return name.append(qualname_text, static_cast<std::size_t>(qualname_bytes));
}

namespace {

bool register_as(PyObject* cls, std::string name, EncodeHandler* encode, PyObject* flatten, PyObject* unflatten,
                 bool in_channels = false) {
  if (PyErr_Occurred()) return false;  // an error of the search for the name
  if (!PyType_Check(cls)) {
    PyErr_Format(PyExc_TypeError, "register() needs a class, not a %.200s", Py_TYPE(cls)->tp_name);
    return false;
  }
  if (!PyCallable_Check(flatten) || !PyCallable_Check(unflatten)) {
    PyErr_SetString(PyExc_TypeError, "register() needs two functions: flatten(object) and unflatten(flattened)");
    return false;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (has_native_kind(type)) {
    PyErr_Format(PyExc_ValueError, "%.200s has a native kind and needs no registration", type->tp_name);
    return false;
  }
  if (PyErr_Occurred()) return false;
  auto* info = new ClassInfo();
  info->type = type;
  info->name = std::move(name);
  info->encode = encode;
  info->shape = ClassShape::kRegistered;
  info->in_channels = in_channels;
  info->flatten = Ref::borrow(flatten);
  info->unflatten = Ref::borrow(unflatten);
  if (info->name.empty() || info->name.size() > kMaxNameBytes || !set_guard(info)) {
    delete info;
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "register() needs a class with a name of at most 4096 bytes");
    return false;
  }
  Py_INCREF(cls);  // a registration is permanent
  store(info);
  return true;
}

}  // namespace

bool register_class(PyObject* cls, PyObject* flatten, PyObject* unflatten, bool in_channels) {
  return register_as(cls, global_name(cls), once<encode_registered>, flatten, unflatten, in_channels);
}

bool register_end(PyObject* cls, std::string_view name, PyObject* flatten, PyObject* unflatten) {
  return register_as(cls, std::string(name), once<encode_end>, flatten, unflatten);
}

const ClassInfo* registered_class(std::string_view name) {
  const std::lock_guard guard(tables_mutex);
  const auto found = registered_by_name().find(name);
  return found == registered_by_name().end() ? nullptr : found->second;
}

}  // namespace shmtree::python
