// Cache of the classes and functions that recent messages named. A name that is in every message costs two dict
// lookups.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Direct-mapped by a hash of the name. Only names directly in a module are cached, and never objects: find() returns
// the module's current attribute. An entry is valid while sys.modules has the same module as when resolve_global()
// imported it. Used by one walk at a time.
class GlobalCache {
 public:
  // Returns a new reference. Returns null if the name is not cached, or with a Python error set that is not ordinary.
  Ref find(std::string_view name) {
    const Entry& entry = entry_of(name);
    if (!entry.module_name || entry.name != name) return Ref();
    const Ref module = item_of(PyImport_GetModuleDict(), entry.module_name.get());
    Ref object = module && module.get() == entry.module ? in_module(module.get(), entry) : Ref();
    if (!object) clear_ordinary_exception();
    return object;
  }

  // Remembers a name that resolve_global() found. Returns false with a Python error set that is not ordinary.
  bool keep(std::string_view name, PyObject* object) {
    const std::size_t colon = name.find(':');
    if (colon == std::string_view::npos || name.find('.', colon) != std::string_view::npos) return true;
    Entry entry;
    entry.module_name = interned(name.substr(0, colon));
    entry.attribute = interned(name.substr(colon + 1));
    const Ref module =
        entry.module_name && entry.attribute ? item_of(PyImport_GetModuleDict(), entry.module_name.get()) : Ref();
    if (module && in_module(module.get(), entry).get() == object) {
      entry.name = name;
      entry.module = module.get();
      entry_of(name) = std::move(entry);
    }
    return clear_ordinary_exception();
  }

 private:
  struct Entry {
    std::string name{};
    Ref module_name{}, attribute{};
    const PyObject* module = nullptr;  // compared only; not kept alive
  };

  static Ref in_module(PyObject* module, const Entry& entry) {
    return PyModule_CheckExact(module) ? item_of(PyModule_GetDict(module), entry.attribute.get()) : Ref();
  }
  static Ref interned(std::string_view text) {
    PyObject* text_object = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
    if (text_object) PyUnicode_InternInPlace(&text_object);
    return Ref(text_object);
  }
  Entry& entry_of(std::string_view name) { return entries_[std::hash<std::string_view>()(name) % kEntries]; }

  static constexpr std::size_t kEntries = 64;
  Entry entries_[kEntries];
};

}  // namespace shmtree::python
