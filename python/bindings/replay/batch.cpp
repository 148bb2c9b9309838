#include "bindings/replay/batch.h"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/view_owner.h"
#include "bindings/replay/until_closed.h"
#include "platform/copy.h"
#include "platform/memory_limits.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using platform::WaitContext;

namespace {

// Allocates a batch. Throws pybind11::value_error, with the numbers, if the machine has too little memory.
replay::Batch planned(const std::shared_ptr<Replay>& replay, const replay::SampleTerms& terms, bool has_data) try {
  return replay::Batch(replay->buffer, *replay->pool, terms, has_data);
} catch (const std::bad_alloc&) {
  std::string rows = std::to_string(terms.rows);
  if (terms.length != 0) rows += " x " + std::to_string(terms.length);
  throw py::value_error("n is " + std::to_string(terms.rows) + ": a batch of " + rows + " rows of " +
                        std::to_string(replay::Batch::row_bytes(*replay->buffer)) + " bytes; the machine has " +
                        std::to_string(platform::available_memory_bytes()) + " bytes left, and at most " +
                        std::to_string(replay::Batch::kMaxRows) + " rows can be sampled at once");
}

}  // namespace

ReplayBatch::ReplayBatch(const std::shared_ptr<Replay>& replay, const replay::SampleTerms& terms,
                         const platform::Deadline& deadline, std::span<std::byte* const> out)
    : replay_(replay), batch_(planned(replay, terms, out.empty())) {
  const bool is_long = batch_.copied_bytes() > platform::kLongCopyBytes || terms.threads > 1;
  Status sampled = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    UntilClosed until(hooks, replay_->closed);
    return batch_.sample(out, WaitContext{deadline, &until});
  });
  if (!sampled) {
    raise_waited(sampled.error(), replay_->closed, "this replay buffer was closed in this process");
    throw py::error_already_set();
  }
  owner_ = own(new_view_owner(batch_.memory(), batch_.memory().get(), batch_.bytes(), true));
}

// Makes an array that is a view of the batch's memory.
Ref ReplayBatch::array_at(void* data, PyArray_Descr* descr, std::span<const npy_intp> shape) const {
  npy_intp dims[NPY_MAXDIMS] = {static_cast<npy_intp>(batch_.terms().rows),
                                static_cast<npy_intp>(batch_.terms().length)};
  const std::size_t front = batch_.terms().length == 0 ? 1 : 2;
  std::copy(shape.begin(), shape.end(), dims + front);
  Py_INCREF(descr);
  Ref array(PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(shape.size() + front), dims, nullptr, data,
                                 NPY_ARRAY_WRITEABLE, nullptr));
  if (!array || PyArray_SetBaseObject(as_array(array.get()), Py_NewRef(owner_.ptr())) != 0) return Ref();
  return array;
}

py::object ReplayBatch::number_array(void* data, int type) const {
  const Ref descr(reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)));
  return own(array_at(data, reinterpret_cast<PyArray_Descr*>(descr.get()), {}).release());
}

py::object ReplayBatch::data() const {
  const auto leaves = replay_->nests.data->leaves();
  std::vector<Ref> arrays;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    arrays.push_back(array_at(batch_.output(i), leaves[i].descr(), leaves[i].shape));
    if (!arrays.back()) throw py::error_already_set();
  }
  return own(replay_->nests.data->build(arrays).release());
}

// Makes an array with its own memory, of that type, filled with `value`.
py::object ReplayBatch::filled(int type, double value) const {
  npy_intp dims[] = {static_cast<npy_intp>(batch_.terms().rows), static_cast<npy_intp>(batch_.terms().length)};
  py::object array = own(PyArray_SimpleNew(batch_.terms().length == 0 ? 1 : 2, dims, type));
  const py::float_ number(value);
  if (PyArray_FillWithScalar(as_array(array.ptr()), number.ptr()) != 0) throw py::error_already_set();
  return array;
}

py::object ReplayBatch::weight() const {
  const auto found = batch_.importances();
  return found.empty() ? filled(NPY_FLOAT, 1) : number_array(found.data(), NPY_FLOAT);
}

py::object ReplayBatch::probability() const {
  const auto found = batch_.probabilities();
  return found.empty() ? filled(NPY_DOUBLE, batch_.even_probability()) : number_array(found.data(), NPY_DOUBLE);
}

py::object ReplayBatch::priority() const {
  py::object array = filled(NPY_FLOAT, 1);
  auto* const out = static_cast<float*>(PyArray_DATA(as_array(array.ptr())));
  batch_.priorities({out, batch_.terms().all_rows()});
  return array;
}

py::object ReplayBatch::extra(std::size_t number, int type) const {
  return number_array(batch_.output(replay_->nests.data->leaves().size() + number), type);
}

py::object ReplayBatch::goals() const {
  return batch_.terms().hindsight ? number_array(batch_.goals().data(), NPY_INT64) : py::none();
}

void ReplayBatch::set_rewards(py::handle rewards, py::handle terminated) const {
  const auto size = static_cast<std::size_t>(
      std::ranges::count_if(batch_.goals(), [](std::uint64_t goal) { return goal != replay::kNoRow; }));
  const auto numbers = [&]<class Number>(py::handle array, int type, Number*) {
    if (!PyArray_CheckExact(array.ptr()) || PyArray_TYPE(as_array(array.ptr())) != type ||
        !PyArray_ISCARRAY_RO(as_array(array.ptr())) ||
        static_cast<std::size_t>(PyArray_SIZE(as_array(array.ptr()))) != size) {
      throw py::value_error("there must be one value for each of the " + std::to_string(size) + " relabelled rows");
    }
    return std::span(static_cast<const Number*>(PyArray_DATA(as_array(array.ptr()))), size);
  };
  std::span<const bool> ends;
  if (!terminated.is_none()) ends = numbers(terminated, NPY_BOOL, static_cast<bool*>(nullptr));
  batch_.set_rewards(numbers(rewards, NPY_DOUBLE, static_cast<double*>(nullptr)), ends);
}

void bind_replay_batch(py::module_& module) {
  py::class_<ReplayBatch>(module, "ReplayBatch", plain_class())
      .def("data", &ReplayBatch::data)
      .def("index", &ReplayBatch::index)
      .def("weight", &ReplayBatch::weight)
      .def("probability", &ReplayBatch::probability)
      .def("priority", &ReplayBatch::priority)
      .def("mask", &ReplayBatch::mask)
      .def("goals", &ReplayBatch::goals)
      .def("set_rewards", &ReplayBatch::set_rewards, "rewards"_a, "terminated"_a)
      .def("version", [](const ReplayBatch& self) { return self.extra(0, NPY_INT64); })
      .def("writer", [](const ReplayBatch& self) { return self.extra(1, NPY_INT64); })
      .def("step", [](const ReplayBatch& self) { return self.extra(2, NPY_INT64); })
      .def("discount", [](const ReplayBatch& self) { return self.extra(3, NPY_FLOAT); })
      .def_property_readonly("newest", &ReplayBatch::newest);
}

}  // namespace shmtree::python
