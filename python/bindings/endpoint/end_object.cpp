#include "bindings/endpoint/end_object.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"

namespace shmtree::python {
namespace {

// --- Methods of all ends ---------------------------------------------------------------------------------------------

PyObject* get_closed(PyObject* self, void*) {
  return PyBool_FromLong(as_end(self)->kind->closed(as_end(self)));
}

PyObject* get_allow_pickle(PyObject* self, void*) {
  return PyBool_FromLong(as_end(self)->allow_pickle);
}

PyObject* get_pickled(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_end(self)->pickled.load(std::memory_order_relaxed));
}

PyObject* get_spin(PyObject* self, void*) {
  return spin_seconds(as_end(self)->spin);
}

int set_spin(PyObject* self, PyObject* seconds, void*) {
  return set_spin_seconds(as_end(self)->spin, seconds) ? 0 : -1;
}

PyObject* get_arena(PyObject* self, void*) {
  auto arena = as_end(self)->kind->arena(as_end(self));
  return arena ? new_reference_from([&] { return pybind11::cast(std::move(arena)); }) : nullptr;
}

PyObject* close_end(PyObject* self, PyObject*) {
  as_end(self)->kind->close(as_end(self));
  return run_close_callback(self);
}

const PyMethodDef kCommonMethods[] = {
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, nullptr},
    {"close", as_method<close_end>(), METH_NOARGS, nullptr},
};

const PyGetSetDef kCommonAttributes[] = {
    {"closed", guarded<get_closed>, nullptr, nullptr, nullptr},
    {"allow_pickle", guarded<get_allow_pickle>, nullptr, nullptr, nullptr},
    {"spin", guarded<get_spin>, guarded<set_spin>, nullptr, nullptr},
    {"_pickled", guarded<get_pickled>, nullptr, nullptr, nullptr},
    {"_arena", guarded<get_arena>, nullptr, nullptr, nullptr},
};

// --- Methods of ends that put or publish -----------------------------------------------------------------------------

PyObject* report_failure(PyObject* self, std::uint32_t exit_code) {
  as_end(self)->kind->fail(as_end(self), memory::failure_with(exit_code));
  return run_close_callback(self);
}

PyObject* fail_end(PyObject* self, PyObject*) {
  return report_failure(self, 0);
}

PyObject* fail_with(PyObject* self, PyObject* exit_code) {
  const long code = PyLong_AsLong(exit_code);
  return PyErr_Occurred() ? nullptr : report_failure(self, static_cast<std::uint32_t>(code));
}

// True for a dtype that only torch can allocate; _new_tensor() of the Python class does it.
bool is_torch_dtype(PyObject* dtype) {
  return std::strcmp(Py_TYPE(dtype)->tp_name, "torch.dtype") == 0;
}

template <bool zeroed>
PyObject* make_in_place(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<3> kSignature{zeroed ? "new_zeros" : "new_empty", {"shape", "dtype", "order"}, 3, 1};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  if (given[2] && !PyUnicode_Check(given[2])) {
    return PyErr_Format(PyExc_TypeError, "order is %R; it must be 'C' or 'F'", given[2]);
  }
  Py_ssize_t order_bytes = 1;
  const char* order = given[2] ? PyUnicode_AsUTF8AndSize(given[2], &order_bytes) : "C";
  if (!order) return nullptr;
  PyObject* dtype = given[1] ? given[1] : reinterpret_cast<PyObject*>(&PyFloat_Type);
  if (is_torch_dtype(dtype)) {
    return without_unwinding([&] {
      return PyObject_CallMethod(self, "_new_tensor", "OOs#O", given[0], dtype, order, order_bytes,
                                 zeroed ? Py_True : Py_False);
    });
  }
  const std::string_view given_order(order, static_cast<std::size_t>(order_bytes));
  return as_end(self)->kind->new_array(as_end(self), {given[0], dtype, given_order, zeroed, false});
}

const PyMethodDef kPublishingMethods[] = {
    {"fail", as_method<fail_end>(), METH_NOARGS, nullptr},
    {"_fail", as_method<fail_with>(), METH_O, nullptr},
    {"new_empty", as_method<make_in_place<false>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"new_zeros", as_method<make_in_place<true>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

// --- Types -----------------------------------------------------------------------------------------------------------

// Joins tables into one, which ends with an empty entry. The table is never freed, like the types that use it.
template <class Entry>
Entry* joined(std::span<const Entry> common, std::initializer_list<std::span<const Entry>> tables) {
  std::size_t count = common.size() + 1;
  for (const auto& table : tables) count += table.size();
  auto* const all = new Entry[count]{};
  Entry* end = std::copy(common.begin(), common.end(), all);
  for (const auto& table : tables) end = std::copy(table.begin(), table.end(), end);
  return all;
}

void dealloc_end(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  as_end(self)->kind->destroy(as_end(self));
  Py_XDECREF(as_end(self)->deferred.load());
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* close_callback = nullptr;  // set when the package is imported

}  // namespace

bool add_end_type(PyObject* module, const EndType& description) {
  std::vector<PyType_Slot> slots = {
      {Py_tp_new, reinterpret_cast<void*>(description.make)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_end)},
      {Py_tp_methods, joined<PyMethodDef>(kCommonMethods, description.methods)},
      {Py_tp_getset, joined<PyGetSetDef>(kCommonAttributes, description.attributes)},
  };
  if (description.next) {
    slots.push_back({Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)});
    slots.push_back({Py_tp_iternext, reinterpret_cast<void*>(description.next)});
  }
  slots.push_back({0, nullptr});
  PyType_Spec spec = {description.name, static_cast<int>(description.size_bytes), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots.data()};
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, std::strrchr(description.name, '.') + 1, type.get()) == 0;
}

std::span<const PyMethodDef> publishing_methods() {
  return kPublishingMethods;
}

void set_close_callback(PyObject* callback) {
  Py_INCREF(callback);
  Py_XDECREF(std::exchange(close_callback, callback));
}

PyObject* run_close_callback(PyObject* self) {
  return close_callback ? call_python(close_callback, self) : Py_NewRef(Py_None);
}

channel::WakeHub* hub_of(PyObject* object) {
  try {
    return &pybind11::handle(object).cast<channel::WakeHub&>();
  } catch (const pybind11::cast_error&) {
    PyErr_Format(PyExc_TypeError, "hub is %R; it must be a WakeHub", object);
    return nullptr;
  }
}

bool take_deferred(EndObject* self) {
  const Ref exception(self->deferred.exchange(nullptr));
  if (!exception) return false;  // another thread took it first
  PyErr_SetObject(type_object(Py_TYPE(exception.get())), exception.get());
  return true;
}

// Drops the traceback and the exception that was handled meanwhile: their frames would keep this object alive.
void defer_exception(EndObject* self) {
  Ref exception = take_exception();
  PyException_SetTraceback(exception.get(), Py_None);
  PyException_SetContext(exception.get(), nullptr);
  Py_XDECREF(self->deferred.exchange(exception.release()));
}

}  // namespace shmtree::python
