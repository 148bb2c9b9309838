#include "bindings/replay/nest.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;

namespace {

bool is_like(const Nest::Leaf& leaf, PyArrayObject* array) {
  if (PyArray_TYPE(array) != leaf.type_number || !PyArray_ISNOTSWAPPED(array) || !PyArray_IS_C_CONTIGUOUS(array)) {
    return false;
  }
  const std::span dims(PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array)));
  return std::ranges::equal(dims, leaf.shape) &&
         (leaf.is_plain || PyArray_EquivTypes(PyArray_DESCR(array), leaf.descr()));
}

// True if the array has one such leaf per row, and each of these is contiguous.
bool is_column_of(const Nest::Leaf& leaf, PyArrayObject* array) {
  if (PyArray_TYPE(array) != leaf.type_number || !PyArray_ISNOTSWAPPED(array)) return false;
  const std::span dims(PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array)));
  if (dims.size() != leaf.shape.size() + 1 || !std::ranges::equal(dims.subspan(1), leaf.shape)) return false;
  if (dims[0] == 0) return leaf.is_plain || PyArray_EquivTypes(PyArray_DESCR(array), leaf.descr());
  npy_intp next = static_cast<npy_intp>(PyDataType_ELSIZE(leaf.descr()));
  for (std::size_t i = dims.size() - 1; i > 0; --i) {
    if (dims[i] != 1 && PyArray_STRIDE(array, static_cast<int>(i)) != next) return false;
    next *= dims[i];
  }
  return PyArray_STRIDE(array, 0) >= 0 && (leaf.is_plain || PyArray_EquivTypes(PyArray_DESCR(array), leaf.descr()));
}

template <class Int>
bool stage_int(std::size_t leaf, PyObject* value, LeafAddresses& out) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0 || !std::in_range<Int>(number)) return false;
  out.stage(leaf, static_cast<Int>(number));
  return true;
}

template <class Float>
bool stage_float(std::size_t leaf, PyObject* value, LeafAddresses& out) {
  const bool is_float = PyFloat_Check(value);
  const double number = is_float ? PyFloat_AS_DOUBLE(value) : PyLong_AsDouble(value);
  if (!is_float && number == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  out.stage(leaf, static_cast<Float>(number));
  return true;
}

Ref path_of(PyObject* path, PyObject* key) {
  return Ref(PyUnicode_FromFormat("%U[%R]", path, key));
}

}  // namespace

Nest::~Nest() = default;

// --- Construction

std::shared_ptr<Nest> Nest::make(PyObject* skeleton, PyObject* leaves, PyObject* root, PyObject* convert,
                                 PyObject* refuse) {
  std::shared_ptr<Nest> nest(new Nest());
  nest->convert_ = Ref::borrow(convert);
  nest->refuse_ = Ref::borrow(refuse);
  const Ref sequence(PySequence_Fast(leaves, "leaves must be a sequence"));
  if (!sequence) return nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    if (!nest->add_leaf(PySequence_Fast_GET_ITEM(sequence.get(), i))) return nullptr;
  }
  return nest->compile(skeleton, Ref::borrow(root), nest->root_) ? nest : nullptr;
}

bool Nest::add_leaf(PyObject* leaf) {
  PyObject *dtype = nullptr, *shape = nullptr;
  if (!PyArg_ParseTuple(leaf, "O!O!", &PyArrayDescr_Type, &dtype, &PyTuple_Type, &shape)) return false;
  Leaf added;
  added.dtype = Ref::borrow(dtype);
  added.type_number = added.descr()->type_num;
  added.is_plain = added.type_number < NPY_OBJECT || added.type_number == NPY_HALF;
  added.bytes = static_cast<std::size_t>(PyDataType_ELSIZE(added.descr()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); ++i) {
    added.shape.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i)));
    if (added.shape.back() < 0 ||
        __builtin_mul_overflow(added.bytes, static_cast<std::size_t>(added.shape.back()), &added.bytes)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the shape of a leaf is negative or too large");
      return false;
    }
  }
  leaves_.push_back(std::move(added));
  return true;
}

bool Nest::compile(PyObject* skeleton, Ref path, Part& out) {
  out.skeleton = Ref::borrow(skeleton);
  PyObject* const place = path.get();
  out.path = std::move(path);
  if (PyDict_Check(skeleton)) {
    out.form = Form::kDict;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(skeleton, &at, &key, &value);) {
      out.keys.push_back(Ref::borrow(key));
      if (!add_part(value, key, place, out)) return false;
    }
    return true;
  }
  if (PyList_Check(skeleton) || PyTuple_Check(skeleton)) {
    out.form = PyList_Check(skeleton) ? Form::kList : Form::kTuple;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(skeleton); ++i) {
      const Ref number(PyLong_FromSsize_t(i));
      if (!number || !add_part(PySequence_Fast_GET_ITEM(skeleton, i), number.get(), place, out)) return false;
    }
    return true;
  }
  out.leaf = PyLong_AsSize_t(skeleton);
  if (PyErr_Occurred()) return false;
  if (out.leaf < leaves_.size()) {
    leaves_[out.leaf].path = Ref::borrow(place);
    return true;
  }
  PyErr_SetString(PyExc_ValueError, "a leaf number of the row is out of range");
  return false;
}

bool Nest::add_part(PyObject* skeleton, PyObject* key, PyObject* path, Part& out) {
  Ref place = path_of(path, key);
  if (!place || Py_EnterRecursiveCall(" in a row of a replay buffer")) return false;
  out.parts.emplace_back();
  const bool done = compile(skeleton, std::move(place), out.parts.back());
  Py_LeaveRecursiveCall();
  return done;
}

// --- Walk over the parts of a row

template <class Take>
bool Nest::walk(const Part& part, PyObject* value, const Take& take) const {
  if (part.form == Form::kLeaf) return take(part.leaf, value);
  const Ref kept = Ref::borrow(value);  // a conversion may run any code, which may drop it
  return part.form == Form::kDict ? walk_dict(part, value, take) : walk_sequence(part, value, take);
}

// Expects the keys in the order of the skeleton. At the first key in another order, looks up the remaining ones by key.
template <class Take>
bool Nest::walk_dict(const Part& part, PyObject* dict, const Take& take) const {
  if (!PyDict_Check(dict)) return refuse(part, dict);
  const CriticalSection alone(dict);
  if (PyDict_GET_SIZE(dict) != static_cast<Py_ssize_t>(part.keys.size())) return refuse(part, dict);
  std::size_t i = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; i < part.keys.size(); ++i) {
    if (!PyDict_Next(dict, &at, &key, &value) || key != part.keys[i].get()) break;
    if (!walk(part.parts[i], value, take)) return false;
  }
  for (; i < part.keys.size(); ++i) {
    const Ref found = item_of(dict, part.keys[i].get());
    if (!found) return PyErr_Occurred() ? false : refuse(part, dict);
    if (!walk(part.parts[i], found.get(), take)) return false;
  }
  return true;
}

template <class Take>
bool Nest::walk_sequence(const Part& part, PyObject* sequence, const Take& take) const {
  if (part.form == Form::kList ? !PyList_Check(sequence) : !PyTuple_Check(sequence)) return refuse(part, sequence);
  const CriticalSection alone(sequence);
  const auto has_all = [&] { return PySequence_Fast_GET_SIZE(sequence) == static_cast<Py_ssize_t>(part.parts.size()); };
  for (std::size_t i = 0; has_all() && i < part.parts.size(); ++i) {
    if (!walk(part.parts[i], PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i)), take)) return false;
  }
  return has_all() || refuse(part, sequence);
}

bool Nest::refuse(const Part& part, PyObject* value) const {
  const Ref done(call_python(refuse_.get(), part.path.get(), part.skeleton.get(), value));
  if (done) PyErr_SetString(PyExc_ValueError, "this is not a row of the buffer");
  return false;
}

// Converts a value that is not an array of the leaf's dtype and shape.
Ref Nest::convert(std::size_t number, PyObject* value) const {
  const Ref kept = Ref::borrow(value);
  const Ref place(PyLong_FromSize_t(number));
  Ref array(place ? call_python(convert_.get(), value, place.get()) : nullptr);
  if (!array || PyArray_CheckExact(array.get())) return array;
  PyErr_SetString(PyExc_TypeError, "a leaf was not converted to an array");
  return Ref();
}

// --- One row

bool Nest::read(PyObject* row, LeafAddresses& out) const {
  out.prepare(leaves_.size());
  return walk(root_, row, [&](std::size_t leaf, PyObject* value) { return read_leaf(leaf, value, out); });
}

bool Nest::read_leaf(std::size_t number, PyObject* value, LeafAddresses& out) const {
  const Leaf& leaf = leaves_[number];
  if (PyArray_CheckExact(value) && is_like(leaf, as_array(value))) {
    out.set(number, PyArray_DATA(as_array(value)), value);
    return true;
  }
  if (leaf.shape.empty() && stage(number, value, out)) return true;
  const Ref array = PyErr_Occurred() ? Ref() : convert(number, value);
  if (!array) return false;
  if (!is_like(leaf, as_array(array.get()))) {
    PyErr_SetString(PyExc_TypeError, "a leaf was not converted to its dtype and shape");
    return false;
  }
  out.set(number, PyArray_DATA(as_array(array.get())), array.get());
  return true;
}

// Stores a common number without running Python code. Returns false for all other values.
bool Nest::stage(std::size_t number, PyObject* value, LeafAddresses& out) const {
  const Leaf& leaf = leaves_[number];
  if (PyFloat_Check(value) || PyLong_Check(value)) {
    if (leaf.type_number == NPY_FLOAT) return stage_float<float>(number, value, out);
    if (leaf.type_number == NPY_DOUBLE) return stage_float<double>(number, value, out);
  }
  if (PyLong_Check(value)) {
    switch (leaf.type_number) {
      case NPY_BOOL:
        if (PyBool_Check(value)) out.stage(number, static_cast<npy_bool>(value == Py_True));
        return PyBool_Check(value);
      case NPY_BYTE: return stage_int<npy_byte>(number, value, out);
      case NPY_UBYTE: return stage_int<npy_ubyte>(number, value, out);
      case NPY_SHORT: return stage_int<npy_short>(number, value, out);
      case NPY_USHORT: return stage_int<npy_ushort>(number, value, out);
      case NPY_INT: return stage_int<npy_int>(number, value, out);
      case NPY_UINT: return stage_int<npy_uint>(number, value, out);
      case NPY_LONG: return stage_int<npy_long>(number, value, out);
      case NPY_ULONG: return stage_int<npy_ulong>(number, value, out);
      case NPY_LONGLONG: return stage_int<npy_longlong>(number, value, out);
      case NPY_ULONGLONG: return stage_int<npy_ulonglong>(number, value, out);
      default: return false;
    }
  }
  if (!leaf.is_plain || Py_TYPE(value) != leaf.descr()->typeobj) return false;
  PyArray_ScalarAsCtype(value, out.staged(number));
  return true;
}

// --- Many rows

bool Nest::read_columns(PyObject* rows, LeafColumns& out) const {
  out.at_.resize(leaves_.size());
  return walk(root_, rows, [&](std::size_t leaf, PyObject* value) { return read_column(leaf, value, out); });
}

bool Nest::read_column(std::size_t number, PyObject* value, LeafColumns& out) const {
  const Leaf& leaf = leaves_[number];
  Ref array = Ref::borrow(value);
  if (!PyArray_CheckExact(value) || !is_column_of(leaf, as_array(value))) array = convert(number, value);
  if (!array) return false;
  PyArrayObject* const column = as_array(array.get());
  if (!is_column_of(leaf, column)) {
    PyErr_SetString(PyExc_TypeError, "a column was not converted to its dtype and shape");
    return false;
  }
  const auto rows = static_cast<std::size_t>(PyArray_DIM(column, 0));
  if (!std::exchange(out.has_rows_, true)) {
    out.first_ = number;
  } else if (rows != out.rows_) {
    PyErr_Format(PyExc_ValueError, "%U has %zu rows and %U has %zu; they must have the same length", leaf.path.get(),
                 rows, leaves_[out.first_].path.get(), out.rows_);
    return false;
  }
  out.rows_ = rows;
  out.at_[number] = {static_cast<const std::byte*>(PyArray_DATA(column)),
                     static_cast<std::size_t>(PyArray_STRIDE(column, 0))};
  out.kept_.push_back(std::move(array));
  return true;
}

// --- Building a nest

Ref Nest::build(const Part& part, std::span<const Ref> leaves) {
  const auto count = static_cast<Py_ssize_t>(part.parts.size());
  switch (part.form) {
    case Form::kLeaf: return Ref::borrow(leaves[part.leaf].get());
    case Form::kDict: {
      Ref dict(PyDict_New());
      for (std::size_t i = 0; dict && i < part.parts.size(); ++i) {
        const Ref value = build(part.parts[i], leaves);
        if (!value || PyDict_SetItem(dict.get(), part.keys[i].get(), value.get()) != 0) return Ref();
      }
      return dict;
    }
    case Form::kList: {
      Ref list(PyList_New(count));
      for (Py_ssize_t i = 0; list && i < count; ++i) {
        Ref value = build(part.parts[static_cast<std::size_t>(i)], leaves);
        if (!value) return Ref();
        PyList_SET_ITEM(list.get(), i, value.release());
      }
      return list;
    }
    case Form::kTuple: {
      Ref tuple(PyTuple_New(count));
      for (Py_ssize_t i = 0; tuple && i < count; ++i) {
        Ref value = build(part.parts[static_cast<std::size_t>(i)], leaves);
        if (!value) return Ref();
        PyTuple_SET_ITEM(tuple.get(), i, value.release());
      }
      return tuple;
    }
  }
  return Ref();
}

namespace {

std::shared_ptr<Nest> make_nest(py::handle skeleton, py::handle leaves, py::handle root, py::handle convert,
                                py::handle refuse) {
  auto nest = Nest::make(skeleton.ptr(), leaves.ptr(), root.ptr(), convert.ptr(), refuse.ptr());
  if (!nest) throw py::error_already_set();
  return nest;
}

}  // namespace

void bind_replay_nest(py::module_& module) {
  py::class_<Nest, std::shared_ptr<Nest>>(module, "ReplayNest", plain_class())
      .def(py::init(&make_nest), "skeleton"_a, "leaves"_a, "root"_a, "convert"_a, "refuse"_a);
}

}  // namespace shmtree::python
