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

// True if the array has one such leaf, or one per row, each of them contiguous.
bool is_of(const Nest::Leaf& leaf, PyArrayObject* array, RowForm form) {
  if (PyArray_TYPE(array) != leaf.type_number || !PyArray_ISNOTSWAPPED(array)) return false;
  const std::span dims(PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array)));
  const std::size_t front = form == RowForm::kMany ? 1 : 0;
  if (dims.size() != leaf.shape.size() + front || !std::ranges::equal(dims.subspan(front), leaf.shape)) return false;
  if (!leaf.is_plain && !PyArray_EquivTypes(PyArray_DESCR(array), leaf.descr())) return false;
  if (PyArray_IS_C_CONTIGUOUS(array)) return true;
  if (form == RowForm::kOne) return false;
  npy_intp next = static_cast<npy_intp>(PyDataType_ELSIZE(leaf.descr()));
  for (std::size_t i = dims.size() - 1; i > 0; --i) {
    if (dims[i] != 1 && PyArray_STRIDE(array, static_cast<int>(i)) != next) return false;
    next *= dims[i];
  }
  return PyArray_STRIDE(array, 0) >= 0;
}

template <class Int>
bool stage_int(std::size_t leaf, PyObject* value, LeafColumns& out) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0 || !std::in_range<Int>(number)) return false;
  out.stage(leaf, static_cast<Int>(number));
  return true;
}

template <class Float>
bool stage_float(std::size_t leaf, PyObject* value, LeafColumns& out) {
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

std::shared_ptr<Nest> Nest::make(PyObject* skeleton, PyObject* leaves, PyObject* names, PyObject* convert,
                                 PyObject* refuse) {
  std::shared_ptr<Nest> nest(new Nest());
  nest->convert_ = Ref::borrow(convert);
  nest->refuse_ = Ref::borrow(refuse);
  PyObject *one = nullptr, *many = nullptr;
  if (!PyArg_ParseTuple(names, "UU", &one, &many)) return nullptr;
  nest->names_[0] = Ref::borrow(one);
  nest->names_[1] = Ref::borrow(many);
  const Ref sequence(PySequence_Fast(leaves, "leaves must be a sequence"));
  if (!sequence) return nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    if (!nest->add_leaf(PySequence_Fast_GET_ITEM(sequence.get(), i))) return nullptr;
  }
  Ref root(PyUnicode_FromString(""));
  return root && nest->compile(skeleton, std::move(root), nest->root_) ? nest : nullptr;
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

// --- Reading rows

bool Nest::read(PyObject* rows, RowForm form, LeafColumns& out) const {
  out.clear();
  out.at_.resize(leaves_.size() + 1);
  out.staged_.resize(leaves_.size());
  out.rows_ = 1;
  out.first_.reset();
  return read(root_, rows, form, out);
}

bool Nest::read(const Part& part, PyObject* value, RowForm form, LeafColumns& out) const {
  if (part.form == Form::kLeaf) return read_leaf(part.leaf, value, form, out);
  const Ref kept = Ref::borrow(value);  // a conversion may run any code, which may drop it
  return part.form == Form::kDict ? read_dict(part, value, form, out) : read_sequence(part, value, form, out);
}

// Expects the keys in the order of the skeleton. At the first key in another order, looks up the remaining ones by key.
bool Nest::read_dict(const Part& part, PyObject* dict, RowForm form, LeafColumns& out) const {
  if (!PyDict_Check(dict)) return refuse(part, dict, form);
  const CriticalSection alone(dict);
  if (PyDict_GET_SIZE(dict) != static_cast<Py_ssize_t>(part.keys.size())) return refuse(part, dict, form);
  std::size_t i = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; i < part.keys.size(); ++i) {
    if (!PyDict_Next(dict, &at, &key, &value) || key != part.keys[i].get()) break;
    if (!read(part.parts[i], value, form, out)) return false;
  }
  for (; i < part.keys.size(); ++i) {
    const Ref found = item_of(dict, part.keys[i].get());
    if (!found) return PyErr_Occurred() ? false : refuse(part, dict, form);
    if (!read(part.parts[i], found.get(), form, out)) return false;
  }
  return true;
}

bool Nest::read_sequence(const Part& part, PyObject* sequence, RowForm form, LeafColumns& out) const {
  if (part.form == Form::kList ? !PyList_Check(sequence) : !PyTuple_Check(sequence)) {
    return refuse(part, sequence, form);
  }
  const CriticalSection alone(sequence);
  const auto has_all = [&] { return PySequence_Fast_GET_SIZE(sequence) == static_cast<Py_ssize_t>(part.parts.size()); };
  for (std::size_t i = 0; has_all() && i < part.parts.size(); ++i) {
    PyObject* const value = PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i));
    if (!read(part.parts[i], value, form, out)) return false;
  }
  return has_all() || refuse(part, sequence, form);
}

bool Nest::read_leaf(std::size_t number, PyObject* value, RowForm form, LeafColumns& out) const {
  const Leaf& leaf = leaves_[number];
  Ref array;
  if (PyArray_CheckExact(value) && is_of(leaf, as_array(value), form)) {
    array = Ref::borrow(value);
  } else {
    if (form == RowForm::kOne && leaf.shape.empty() && stage(number, value, out)) return true;
    if (!PyErr_Occurred()) array = convert(number, value, form);
  }
  if (!array) return false;
  PyArrayObject* const column = as_array(array.get());
  out.at_[number] = PyArray_DATA(column);
  if (form == RowForm::kMany) {
    out.at_[number].stride = static_cast<std::size_t>(PyArray_STRIDE(column, 0));
    const auto rows = static_cast<std::size_t>(PyArray_DIM(column, 0));
    if (out.first_ && rows != out.rows_) {
      const Ref one = full_path(leaf.path, form), other = full_path(leaves_[*out.first_].path, form);
      if (one && other) {
        PyErr_Format(PyExc_ValueError, "%U has %zu rows and %U has %zu; they must have the same length", one.get(),
                     rows, other.get(), out.rows_);
      }
      return false;
    }
    out.rows_ = rows;
    out.first_ = out.first_.value_or(number);
  }
  out.kept_.push_back(std::move(array));
  return true;
}

Ref Nest::full_path(const Ref& path, RowForm form) const {
  return Ref(PyUnicode_FromFormat("%U%U", names_[form == RowForm::kMany].get(), path.get()));
}

bool Nest::refuse(const Part& part, PyObject* value, RowForm form) const {
  const Ref path = full_path(part.path, form);
  const Ref done(path ? call_python(refuse_.get(), path.get(), part.skeleton.get(), value) : nullptr);
  if (done) PyErr_SetString(PyExc_ValueError, "this is not a row of the buffer");
  return false;
}

// Converts a value that is not an array of the leaf's dtype and shape.
Ref Nest::convert(std::size_t number, PyObject* value, RowForm form) const {
  const Ref kept = Ref::borrow(value);
  const Ref place(PyLong_FromSize_t(number)), path = full_path(leaves_[number].path, form);
  if (!place || !path) return Ref();
  PyObject* const is_many = form == RowForm::kMany ? Py_True : Py_False;
  Ref array(call_python(convert_.get(), value, place.get(), path.get(), is_many));
  if (!array || (PyArray_CheckExact(array.get()) && is_of(leaves_[number], as_array(array.get()), form))) return array;
  PyErr_SetString(PyExc_TypeError, "a leaf was not converted to an array of its dtype and shape");
  return Ref();
}

// Stores a common number without running Python code. Returns false for all other values.
bool Nest::stage(std::size_t number, PyObject* value, LeafColumns& out) const {
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
  PyArray_ScalarAsCtype(value, &out.staged_[number]);
  out.at_[number] = &out.staged_[number];
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

std::shared_ptr<Nest> make_nest(py::handle skeleton, py::handle leaves, py::handle names, py::handle convert,
                                py::handle refuse) {
  auto nest = Nest::make(skeleton.ptr(), leaves.ptr(), names.ptr(), convert.ptr(), refuse.ptr());
  if (!nest) throw py::error_already_set();
  return nest;
}

}  // namespace

void bind_replay_nest(py::module_& module) {
  py::class_<Nest, std::shared_ptr<Nest>>(module, "ReplayNest", plain_class())
      .def(py::init(&make_nest), "skeleton"_a, "leaves"_a, "names"_a, "convert"_a, "refuse"_a);
}

}  // namespace shmtree::python
