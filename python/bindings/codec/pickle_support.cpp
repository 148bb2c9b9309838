#include "bindings/codec/pickle_support.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "bindings/codec/class_registry.h"
#include "bindings/codec/encoder.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/package.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/view_owner.h"
#include "endpoint/message_transfers.h"
#include "platform/never_destroyed.h"

namespace shmtree::python {
namespace {

PyObject* pickler_type = nullptr;
PyObject* loads_function = nullptr;
PyObject* bytes_io_type = nullptr;
PyObject* standard_reducers = nullptr;  // copyreg.dispatch_table
PyObject* channel_reducers = nullptr;   // reducers of multiprocessing's queues: connections, sockets, bound methods

// Callback of the pickler for each out-of-band buffer.
PyObject* take_buffer(PyObject* list, PyObject* buffer) {
  if (PyList_Append(list, buffer) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef take_buffer_method = {"take_buffer", as_method<take_buffer>(), METH_O, nullptr};

// Returns a plain dict, which the pickler reads without running Python code. The reducers of this package replace
// pickle's for native kinds that pickle refuses, or would send in band or by descriptor. Reducers of the program take
// precedence over them.
Ref reducers(const EncodeOptions& options) {
  Ref home(options.loans ? options.loans->home() : Ref::borrow(Py_None));
  if (!home) return Ref();
  Ref own(call_python(package().reducers, options.independent ? Py_True : Py_False, home.get(),
                      options.portable ? Py_True : Py_False));
  Ref table(own ? PyDict_Copy(standard_reducers) : nullptr);
  if (!table) return Ref();
  if (options.for_channel && !options.portable && PyDict_Update(table.get(), channel_reducers) != 0) return Ref();
  if (PyDict_Update(table.get(), own.get()) != 0) return Ref();
  const Ref of_program = program_reducers(options);
  return !of_program || PyDict_Update(table.get(), of_program.get()) == 0 ? std::move(table) : Ref();
}

Ref dump(PyObject* object, const EncodeOptions& options, PyObject* buffers) {
  Ref file(PyObject_CallNoArgs(bytes_io_type));
  Ref callback(PyCFunction_New(&take_buffer_method, buffers));
  Ref table = reducers(options);
  if (!file || !callback || !table) return Ref();
  Ref pickler(PyObject_CallFunction(pickler_type, "OiOO", file.get(), 5, Py_False, callback.get()));
  if (!pickler || PyObject_SetAttrString(pickler.get(), "dispatch_table", table.get()) != 0) return Ref();
  Ref method(PyObject_GetAttrString(pickler.get(), "dump"));
  Ref done(method ? call_python(method.get(), object) : nullptr);
  return Ref(done ? PyObject_CallMethod(file.get(), "getvalue", nullptr) : nullptr);
}

// Returns the value that a StandIn (_codec/reducers.py) replaces. Returns null, without an error, if `exporter` is not
// one.
Ref stood_for(PyObject* exporter) {
  if (!exporter || type_object(Py_TYPE(exporter)) != package().stand_in) return Ref();
  return Ref(PyObject_GetAttrString(exporter, "value"));
}

// Adds an array, tensor or masked array of the pickled object as the node that it would be outside a pickle.
bool add_beside(EncodeSession& session, const Ref& value, const EncodeOptions& options) {
  Encoder encoder(session, options, true);
  const bool is_array = Py_TYPE(value.get()) == &PyArray_Type;
  if (is_array ? encoder.array_node(as_array(value.get())) : encoder.node(value.get())) return true;
  if (!PyErr_Occurred()) {
    PyErr_Format(PyExc_TypeError, "a %.200s cannot be sent beside a pickle", Py_TYPE(value.get())->tp_name);
  }
  return false;
}

// Adds the bytes of one buffer as an array node, or the value that the buffer stands for.
bool add_buffer(EncodeSession& session, PyObject* pickle_buffer, const EncodeOptions& options) {
  const Py_buffer* whole = PyPickleBuffer_GetBuffer(pickle_buffer);
  if (!whole) return false;
  if (const Ref value = stood_for(whole->obj)) return add_beside(session, value, options);
  if (PyErr_Occurred()) return false;
  // raw() returns one run of bytes, in C or Fortran order, and keeps the memory in place.
  Ref raw(PyObject_CallMethod(pickle_buffer, "raw", nullptr));
  if (!raw) return false;
  const Py_buffer* view = PyMemoryView_GET_BUFFER(raw.get());
  const auto size = static_cast<std::int64_t>(view->len);
  format::ArraySource source;
  source.data = view->buf;
  source.shape = &size;
  source.ndim = 1;
  source.dtype = DType::kUInt8;
  source.read_only = view->readonly != 0;
  source.may_share = !options.independent;
  if (options.loans && size > 0 && whole->obj && PyArray_Check(whole->obj)) {
    auto* array = as_array(whole->obj);
    Loan loan;
    if (view_owner_of(array) && options.loans->resolve(array, view->buf, static_cast<std::size_t>(size), &loan)) {
      source.external = session.builder().add_external({loan.reference, loan.offset, static_cast<std::uint64_t>(size)});
    }
  }
  session.builder().add_kind(Kind::kArray);
  session.builder().add_array(source);
  session.keep(std::move(raw));
  return true;
}

#if PY_VERSION_HEX >= 0x030c0000
std::atomic<std::uint64_t> changes{1};  // of both tables

int note_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
  changes.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// Returns false with a Python error set.
bool watch_reducers() {
  const int watcher = PyDict_AddWatcher(&note_change);
  return watcher >= 0 && PyDict_Watch(watcher, standard_reducers) == 0 && PyDict_Watch(watcher, channel_reducers) == 0;
}

std::uint64_t version_of_reducers() noexcept {
  return changes.load(std::memory_order_relaxed);
}
#else
bool watch_reducers() {
  return true;
}

// With each change, CPython gives a dict a new version number, which no other dict has had.
std::uint64_t version_of_reducers() noexcept {
  return reinterpret_cast<PyDictObject*>(standard_reducers)->ma_version_tag +
         reinterpret_cast<PyDictObject*>(channel_reducers)->ma_version_tag;
}
#endif

}  // namespace

bool init_pickle() {
  Ref pickle(PyImport_ImportModule("pickle"));
  Ref io(PyImport_ImportModule("io"));
  Ref copyreg(PyImport_ImportModule("copyreg"));
  Ref reduction(PyImport_ImportModule("multiprocessing.reduction"));
  Ref forking(reduction ? PyObject_GetAttrString(reduction.get(), "ForkingPickler") : nullptr);
  if (!pickle || !io || !copyreg || !forking) return false;
  pickler_type = PyObject_GetAttrString(pickle.get(), "Pickler");
  loads_function = PyObject_GetAttrString(pickle.get(), "loads");
  bytes_io_type = PyObject_GetAttrString(io.get(), "BytesIO");
  standard_reducers = PyObject_GetAttrString(copyreg.get(), "dispatch_table");
  channel_reducers = PyObject_GetAttrString(forking.get(), "_extra_reducers");
  return pickler_type && loads_function && bytes_io_type && standard_reducers && channel_reducers && watch_reducers();
}

namespace {

// Returns the first part of the name of the object's module; empty if it has none.
std::string package_of(PyObject* object) {
  const Ref module(PyObject_GetAttrString(object, "__module__"));
  const char* const name = module && PyUnicode_Check(module.get()) ? PyUnicode_AsUTF8(module.get()) : nullptr;
  const std::string text = name ? name : "";
  return clear_ordinary_exception() ? text.substr(0, text.find('.')) : "";
}

bool is_of_program(PyObject* type, PyObject* reducer) {
  const std::string package = package_of(reducer);
  for (const char* const library : {"copyreg", "multiprocessing", "torch", "shmtree"}) {
    if (package == library) return false;
  }
  return package != package_of(type);
}

// For the other classes that are sent by name, how_by_name() finds a reducer.
bool has_kind_of_its_own(PyObject* type) {
  if (type == type_object(&PyArray_Type)) return true;
  const ClassInfo* const info = class_info(reinterpret_cast<PyTypeObject*>(type));
  if (!info || info->encode == &encode_unknown) return false;
  return info->shape == ClassShape::kOther || info->shape == ClassShape::kRegistered;
}

// Adds the reducers of `table` that program_reducers() returns. Returns false with a Python error set.
bool add_of_program(PyObject* table, PyObject* found) {
  const Ref copy(PyDict_Copy(table));  // takes a copy, because the code below may change the table
  PyObject *type = nullptr, *reducer = nullptr;
  Py_ssize_t at = 0;
  while (copy && PyDict_Next(copy.get(), &at, &type, &reducer)) {
    if (!PyType_Check(type) || !is_of_program(type, reducer)) continue;
    if (has_kind_of_its_own(type) && PyDict_SetItem(found, type, reducer) != 0) return false;
    if (!clear_ordinary_exception()) return false;
  }
  return static_cast<bool>(copy);
}

// The reducers of the program at the last change of a table: those of copyreg, and those with multiprocessing's.
struct ProgramReducers {
  std::atomic<std::uint64_t> version{0};
  std::atomic<bool> any{false};
  Mutex mutex;
  Ref for_all, for_channel;  // under the mutex; never changed
};
ProgramReducers& known_reducers() noexcept {
  return platform::never_destroyed<ProgramReducers>();
}

// Returns false with a Python error set.
bool find_program_reducers() {
  ProgramReducers& reducers = known_reducers();
  const std::uint64_t version = version_of_reducers();
  Ref for_all(PyDict_New());
  if (!for_all || !add_of_program(standard_reducers, for_all.get())) return false;
  Ref for_channel(PyDict_Copy(for_all.get()));
  if (!for_channel || !add_of_program(channel_reducers, for_channel.get())) return false;
  const bool any = PyDict_GET_SIZE(for_channel.get()) != 0;
  const std::lock_guard guard(reducers.mutex);
  std::swap(reducers.for_all, for_all);  // the old ones are dropped after the mutex is released
  std::swap(reducers.for_channel, for_channel);
  reducers.any.store(any, std::memory_order_relaxed);
  reducers.version.store(version, std::memory_order_relaxed);
  return true;
}

}  // namespace

Ref program_reducers(const EncodeOptions& options) {
  ProgramReducers& reducers = known_reducers();
  if (reducers.version.load(std::memory_order_relaxed) != version_of_reducers()) [[unlikely]] {
    if (!find_program_reducers()) return PyErr_Clear(), Ref();
  }
  if (!reducers.any.load(std::memory_order_relaxed)) [[likely]]
    return Ref();
  const std::lock_guard guard(reducers.mutex);
  return Ref::borrow((options.for_channel && !options.portable ? reducers.for_channel : reducers.for_all).get());
}

int has_reducer(PyTypeObject* type, bool for_channel) {
  const int own = PyDict_Contains(standard_reducers, type_object(type));
  return own == 0 && for_channel ? PyDict_Contains(channel_reducers, type_object(type)) : own;
}

bool encode_pickle(EncodeSession& session, PyObject* object, const EncodeOptions& options) {
  const endpoint::MessageTransfers::Pickling pickling(options.transfers);
  Ref buffers(PyList_New(0));
  Ref data(buffers ? dump(object, options, buffers.get()) : Ref());
  if (!data) return false;
  format::FrameBuilder& out = session.builder();
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(data.get()));
  out.add_text_node(Kind::kPickle, Kind::kLongPickle, PyBytes_AS_STRING(data.get()), size);
  session.keep(std::move(data));
  const Py_ssize_t count = PyList_GET_SIZE(buffers.get());
  out.add_length(static_cast<std::uint64_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!add_buffer(session, PyList_GET_ITEM(buffers.get(), i), options)) return false;
  }
  return true;
}

Ref load_pickle(PyObject* data, PyObject* buffers) {
  Ref arguments(PyTuple_Pack(1, data));
  Ref names(PyDict_New());
  if (!arguments || !names || PyDict_SetItemString(names.get(), "buffers", buffers) != 0) return Ref();
  return Ref(without_unwinding([&] { return PyObject_Call(loads_function, arguments.get(), names.get()); }));
}

}  // namespace shmtree::python
