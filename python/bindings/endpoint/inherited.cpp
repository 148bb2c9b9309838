// Finds out which inherited ends a forked child was given: those that a walk reaches from the child's Process object.
//
// The walk runs no code of the program: it asks objects for their references as the garbage collector does. From a
// function it follows the closure, the defaults, and the globals and imported modules that its code names. From a
// module, it follows only attributes that the same function names. In functions and classes of libraries, it ignores
// the names in their code, because these lead to objects of the library.
//
// Thread safety: needs the GIL, and a child that has one thread.
#include <pybind11/stl.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cpython/python_api.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/endpoint/endpoint.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using channel::End;

namespace {

// About 0.1 s: a million container objects, or eight million objects without references.
constexpr std::size_t kMaxSteps = 8'000'000, kStepsOfObject = 8;
// A list, tuple or dict of more items counts as data if none of its samples leads to an end. A sample that leads to
// more objects than this is cut short, and may lead to one.
constexpr Py_ssize_t kMaxItems = 1'000, kSamples = 64;
constexpr std::size_t kMaxObjectsOfSample = 200;

std::string_view text_of(PyObject* text) noexcept {
  Py_ssize_t length = 0;
  const char* const utf8 = text && PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &length) : nullptr;
  if (utf8) return {utf8, static_cast<std::size_t>(length)};
  PyErr_Clear();
  return {};
}

// Returns a borrowed reference, or null if there is no such key.
PyObject* item_of(PyObject* dict, PyObject* key) noexcept {
  PyObject* const item = PyDict_GetItemWithError(dict, key);
  if (!item) PyErr_Clear();
  return item;
}

std::string_view package_of(std::string_view module) noexcept {
  return module.substr(0, module.find('.'));
}

// Distinguishes functions and classes of libraries from the program's own.
class Libraries {
 public:
  // `folders`: where libraries are installed; `own`: packages that count as the program's, wherever they are.
  Libraries(std::vector<std::string> folders, std::vector<std::string> own)
      : folders_(std::move(folders)), own_(std::move(own)) {}

  // True if the module with these globals belongs to a library.
  bool has(PyObject* globals) {
    const auto [known, is_new] = known_.try_emplace(globals, false);
    if (is_new) known->second = look(globals);
    return known->second;
  }
  bool has_class(PyTypeObject* type) {
    if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || !type->tp_dict) return true;
    PyObject* const name = PyDict_GetItemString(type->tp_dict, "__module__");
    if (!name || !PyUnicode_CheckExact(name)) return false;
    PyObject* const module = item_of(PyImport_GetModuleDict(), name);
    return module && PyModule_Check(module) && has(PyModule_GetDict(module));
  }

 private:
  bool look(PyObject* globals) const {
    const std::string_view package = package_of(text_of(PyDict_GetItemString(globals, "__name__")));
    for (const std::string& own : own_) {
      if (package == own) return false;
    }
    const std::string_view file = text_of(PyDict_GetItemString(globals, "__file__"));
    for (const std::string& folder : folders_) {
      if (file.find(folder) != std::string_view::npos) return true;
    }
    return false;
  }

  const std::vector<std::string> folders_, own_;
  std::unordered_map<PyObject*, bool> known_{};
};

// Opcodes of the bytecode. `global_shifts` maps those that name a global to the shift of their argument. `import_name`
// names a module to import. `extended_arg` carries the upper bits of the next argument.
struct NamingOps {
  std::unordered_map<int, int> global_shifts{};
  int import_name = 0, extended_arg = 0;
};

// Returns item number i of a list or tuple, or a value of a dict near there; null if there is none.
PyObject* sampled_item(PyObject* container, Py_ssize_t i) {
  if (PyList_CheckExact(container)) return PyList_GET_ITEM(container, i);
  if (PyTuple_CheckExact(container)) return PyTuple_GET_ITEM(container, i);
  PyObject *key = nullptr, *value = nullptr;
  return PyDict_Next(container, &i, &key, &value) ? value : nullptr;
}

// A short walk from one item of a large container: through instances and containers, but not into classes.
class Sample {
 public:
  explicit Sample(const std::unordered_set<PyObject*>& ends) : ends_(ends) {}

  // True if the item leads to none of the ends. Adds the number of objects that it has met to `met`.
  bool is_data(PyObject* item, std::size_t& met) {
    see(item);
    while (!waiting_.empty() && is_data_) {
      PyObject* const object = waiting_.back();
      waiting_.pop_back();
      if (const traverseproc traverse = Py_TYPE(object)->tp_traverse) traverse(object, &Sample::visit, this);
    }
    met += met_.size();
    return is_data_;
  }

 private:
  static int visit(PyObject* object, void* sample) noexcept {
    auto* const self = static_cast<Sample*>(sample);
    try {
      self->see(object);
    } catch (const std::bad_alloc&) {  // must not pass through the C code of tp_traverse
      self->is_data_ = false;
    }
    return self->is_data_ ? 0 : 1;
  }
  void see(PyObject* object) {
    const bool has_unseen_items = PyArray_Check(object) && PyArray_TYPE(as_array(object)) == NPY_OBJECT;
    if (ends_.contains(object) || has_unseen_items || PyWeakref_Check(object)) is_data_ = false;
    if (PyType_Check(object) || !PyObject_IS_GC(object) || !PyObject_GC_IsTracked(object)) return;
    if (!met_.insert(object).second) return;
    if (met_.size() > kMaxObjectsOfSample) is_data_ = false;
    waiting_.push_back(object);
  }

  const std::unordered_set<PyObject*>& ends_;
  std::unordered_set<PyObject*> met_{};
  std::vector<PyObject*> waiting_{};
  bool is_data_ = true;
};

class Walk {
 public:
  Walk(Libraries& libraries, const NamingOps& ops, std::unordered_set<PyObject*> uncertain)
      : libraries_(libraries), ops_(ops), uncertain_(std::move(uncertain)) {
    for_each_inherited([this](Endpoint& each) { missing_.insert(reinterpret_cast<PyObject*>(&each)); });
    ends_ = missing_;
  }

  // Visits everything that `root` leads to. Returns false if the walk was cut short, so that more may be reachable.
  bool run(PyObject* root) {
    see(root);
    while (!waiting_.empty() && !missing_.empty() && !is_undecided_) {
      PyObject* const object = waiting_.back();
      waiting_.pop_back();
      if (PyFunction_Check(object)) {
        inspect_function(object);
      } else if (PyModule_Check(object)) {
        inspect_module(object);
      } else if (PyType_Check(object)) {
        inspect_class(object);
      } else {
        inspect(object);
      }
    }
    return !is_undecided_;
  }
  // Inherited ends that the walk did not find.
  const std::unordered_set<PyObject*>& missing() const noexcept { return missing_; }

 private:
  // Callback for tp_traverse.
  static int visit(PyObject* object, void* walk) noexcept {
    auto* const self = static_cast<Walk*>(walk);
    try {
      self->see(object);
    } catch (const std::bad_alloc&) {  // must not pass through the C code of tp_traverse
      self->is_undecided_ = true;
    }
    return 0;
  }
  void see(PyObject* object) {
    if (!object || is_undecided_) return;
    if (++steps_ > kMaxSteps) is_undecided_ = true;
    if (missing_.erase(object) != 0) return;
    if (PyArray_Check(object)) return see_items(object);
    if (!PyObject_IS_GC(object) || !PyObject_GC_IsTracked(object)) return;
    steps_ += kStepsOfObject - 1;
    if (PyType_Check(object) && libraries_.has_class(reinterpret_cast<PyTypeObject*>(object))) return;
    if (PyModule_Check(object) && libraries_.has(PyModule_GetDict(object))) return;
    if (!is_met_once(object) && !met_.insert(object).second) return;
    if (uncertain_.contains(object)) is_undecided_ = true;
    waiting_.push_back(object);
  }
  // True for an object that only one other object refers to. The walk meets it once, so it needs no note, which would
  // take as much memory as the object.
  static bool is_met_once(PyObject* object) noexcept {
    return Py_REFCNT(object) == 1 && Py_TYPE(object)->tp_weaklistoffset == 0;
  }

  void inspect(PyObject* object) {
    if (PyWeakref_Check(object)) return inspect_reference(object);
    if (is_data(object)) return;
    const traverseproc traverse = Py_TYPE(object)->tp_traverse;
    if (traverse) traverse(object, &Walk::visit, this);
  }
  // True for a large container if its samples lead to no end. Visits the samples, so that their classes are searched.
  bool is_data(PyObject* object) {
    const Py_ssize_t size = PyList_CheckExact(object)    ? PyList_GET_SIZE(object)
                            : PyTuple_CheckExact(object) ? PyTuple_GET_SIZE(object)
                            : PyDict_CheckExact(object)  ? PyDict_GET_SIZE(object)
                                                         : 0;
    if (size <= kMaxItems) return false;
    for (Py_ssize_t i = 0; i < kSamples; ++i) {
      PyObject* const item = sampled_item(object, i * (size - 1) / (kSamples - 1));
      if (item && !Sample(ends_).is_data(item, steps_)) return false;
    }
    for (Py_ssize_t i = 0; i < kSamples; ++i) {
      if (PyObject* const item = sampled_item(object, i * (size - 1) / (kSamples - 1))) see(item);
    }
    return true;
  }
  void inspect_reference(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030d0000
    PyObject* target = nullptr;
    // Safe to drop before the walk goes on: another reference keeps the target.
    if (PyWeakref_GetRef(reference, &target) == 1) see(Ref(target).get());
#else
    see(PyWeakref_GetObject(reference));
#endif
    PyErr_Clear();
  }
  // Visits the items of an object array, which the garbage collector does not traverse.
  void see_items(PyObject* object) {
    PyArrayObject* const array = as_array(object);
    see(PyArray_BASE(array));
    if (PyArray_TYPE(array) != NPY_OBJECT || !met_.insert(object).second) return;
    see_items(array, 0, PyArray_BYTES(array));
  }
  void see_items(PyArrayObject* array, int dimension, const char* data) {
    if (dimension == PyArray_NDIM(array)) {
      PyObject* item = nullptr;
      std::memcpy(&item, data, sizeof item);
      return see(item);
    }
    for (npy_intp i = 0; i < PyArray_DIM(array, dimension) && !is_undecided_; ++i) {
      see_items(array, dimension + 1, data + i * PyArray_STRIDE(array, dimension));
    }
  }
  // Visits a class's attributes, and so its methods, and its bases.
  void inspect_class(PyObject* object) {
    auto* const type = reinterpret_cast<PyTypeObject*>(object);
    see(reinterpret_cast<PyObject*>(Py_TYPE(type)));
    see(type->tp_bases);
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(type->tp_dict, &at, &key, &value)) see(value);
  }
  // Visits all attributes of a module that is an argument or an attribute of one.
  void inspect_module(PyObject* module) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(PyModule_GetDict(module), &at, &key, &value)) see(value);
  }
  void inspect_function(PyObject* function) {
    auto* const parts = reinterpret_cast<PyFunctionObject*>(function);
    see(parts->func_closure);
    see(parts->func_defaults);
    see(parts->func_kwdefaults);
    see(parts->func_dict);
    if (libraries_.has(parts->func_globals)) return;
    inspect_code(reinterpret_cast<PyCodeObject*>(parts->func_code), parts->func_globals);
  }

  // Visits the names in `code`, and in the functions, classes and comprehensions that it contains.
  void inspect_code(PyCodeObject* code, PyObject* globals) {
    if (!codes_.insert({reinterpret_cast<PyObject*>(code), globals}).second) return;
    for (const Named& each : named_in(code)) {
      if (each.number >= PyTuple_GET_SIZE(code->co_names)) continue;
      PyObject* const name = PyTuple_GET_ITEM(code->co_names, each.number);
      if (each.is_import) {
        see_imported(text_of(name), globals, code->co_names);
      } else {
        PyObject* const value = item_of(globals, name);
        see_named(value ? value : item_of(PyEval_GetBuiltins(), name), code->co_names);
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i) {
      PyObject* const value = PyTuple_GET_ITEM(code->co_consts, i);
      if (PyCode_Check(value)) inspect_code(reinterpret_cast<PyCodeObject*>(value), globals);
    }
  }
  struct Named {
    int number;
    bool is_import;  // a module to import, not a global
  };
  std::vector<Named> named_in(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
    const Ref bytes(PyCode_GetCode(code));
#else
    const Ref bytes(Py_NewRef(code->co_code));
#endif
    std::vector<Named> found;
    if (!bytes) return PyErr_Clear(), is_undecided_ = true, found;
    const auto* const text = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes.get()));
    unsigned argument = 0;
    for (Py_ssize_t i = 0; i + 1 < PyBytes_GET_SIZE(bytes.get()); i += 2) {
      argument = argument << 8 | text[i + 1];
      if (text[i] == ops_.extended_arg) continue;
      if (text[i] == ops_.import_name) found.push_back({static_cast<int>(argument), true});
      if (const auto op = ops_.global_shifts.find(text[i]); op != ops_.global_shifts.end()) {
        found.push_back({static_cast<int>(argument >> op->second), false});
      }
      argument = 0;
    }
    return found;
  }
  // Visits an object that code names. From a module, follows the attributes that the same code names.
  void see_named(PyObject* value, PyObject* names) {
    if (!value) return;
    if (!PyModule_Check(value)) return see(value);
    if (!modules_.insert({value, names}).second) return;
    PyObject* const attributes = PyModule_GetDict(value);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      see_named(item_of(attributes, PyTuple_GET_ITEM(names, i)), names);
    }
  }
  // Visits a module if it is loaded already: any other module has inherited nothing. The name may be relative to each
  // of the packages that contain the code.
  void see_imported(std::string_view name, PyObject* globals, PyObject* names) {
    see_module(std::string(name), names);
    std::string package(text_of(PyDict_GetItemString(globals, "__package__")));
    while (!package.empty()) {
      see_module(name.empty() ? package : package + "." + std::string(name), names);
      const std::size_t dot = package.rfind('.');
      package.resize(dot == std::string::npos ? 0 : dot);
    }
  }
  void see_module(const std::string& name, PyObject* names) {
    see_named(PyDict_GetItemString(PyImport_GetModuleDict(), name.c_str()), names);
  }

  struct PairHash {
    std::size_t operator()(const std::pair<PyObject*, PyObject*>& pair) const noexcept {
      return std::hash<PyObject*>()(pair.first) * 31 + std::hash<PyObject*>()(pair.second);
    }
  };
  Libraries& libraries_;
  const NamingOps& ops_;
  const std::unordered_set<PyObject*> uncertain_;
  std::unordered_set<PyObject*> ends_{}, missing_{};
  std::unordered_set<PyObject*> met_{};
  std::unordered_set<std::pair<PyObject*, PyObject*>, PairHash> modules_{};  // with the names to follow
  std::unordered_set<std::pair<PyObject*, PyObject*>, PairHash> codes_{};    // with their globals
  std::vector<PyObject*> waiting_{};
  std::size_t steps_ = 0;
  bool is_undecided_ = false;
};

// Makes the inherited ends in `others` passive. This process was given all others, and joins them.
void divide(const std::unordered_set<PyObject*>& others) {
  for_each_inherited([&](Endpoint& each) {
    if (!others.contains(reinterpret_cast<PyObject*>(&each))) {
      const endpoint::Call call(each.port);
      // The end may have been passive in the parent. If it cannot attach, its next use reports that the stream has
      // ended.
      for (const End end : channel::kEnds) each.port.attach_again(end).ok();
      return each.port.note_given();
    }
    for (const End end : channel::kEnds) each.port.make_passive(end);
  });
}

bool has_inherited() {
  bool any = false;
  for_each_inherited([&any](const Endpoint&) { any = true; });
  return any;
}

bool keep_given(py::handle process, std::vector<std::string> folders, std::vector<std::string> own,
                std::unordered_map<int, int> global_ops, int import_name, int extended_arg,
                const std::vector<py::object>& uncertain) {
  const NamingOps ops{std::move(global_ops), import_name, extended_arg};
  std::unordered_set<PyObject*> those;
  for (const py::object& each : uncertain) those.insert(each.ptr());
  Libraries libraries(std::move(folders), std::move(own));
  Walk walk(libraries, ops, std::move(those));
  const bool is_sure = walk.run(process.ptr());
  PyErr_Clear();
  if (is_sure) divide(walk.missing());
  return is_sure;
}

void keep_only(const std::vector<py::object>& ends) {
  std::unordered_set<PyObject*> others;
  for_each_inherited([&](Endpoint& each) { others.insert(reinterpret_cast<PyObject*>(&each)); });
  for (const py::object& each : ends) others.erase(each.ptr());
  divide(others);
}

}  // namespace

void bind_inherited(py::module_& module) {
  module.def("has_inherited", &has_inherited);
  module.def("keep_given", &keep_given, "process"_a, "library_folders"_a, "own_packages"_a, "global_ops"_a,
             "import_name"_a, "extended_arg"_a, "uncertain"_a);
  module.def("keep_only", &keep_only, "ends"_a);
}

}  // namespace shmtree::python
