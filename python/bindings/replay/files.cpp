// _core.ReplayFiles and save_replay: saves replay buffers to files and loads them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings/bind.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/replay.h"
#include "replay/files/loader.h"
#include "replay/files/saver.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using platform::WaitContext;
using replay::Loader;

namespace {

// Raises ValueError for a damaged or incompatible file, and BlockingIOError for a folder that is in use.
template <class T>
T unwrap_files(Result<T> result) {
  if (result.ok()) return std::move(*result);
  const Error& error = result.error();
  if (error.code == Code::kCorrupt || error.code == Code::kIncompatible) {
    const auto size = static_cast<Py_ssize_t>(error.message.size());
    const Ref text(PyUnicode_DecodeUTF8(error.message.data(), size, "replace"));  // a path may contain any bytes
    if (text) PyErr_SetObject(PyExc_ValueError, text.get());
    throw py::error_already_set();
  }
  if (error.code == Code::kUnavailable) {
    PyErr_SetString(PyExc_BlockingIOError, error.message.c_str());
    throw py::error_already_set();
  }
  return unwrap(std::move(result));
}

// Calls progress(done, total). Throws what it raises. Needs the GIL.
void report(const py::object& progress, std::uint64_t done, std::uint64_t total) {
  const py::int_ done_bytes(done), total_bytes(total);
  const Ref result(call_python(progress.ptr(), done_bytes.ptr(), total_bytes.ptr()));
  if (!result) throw py::error_already_set();
}

// Calls act(wait, hook) without the GIL, and returns its result. `progress` is a callable or None. What it raises
// passes through `act`.
template <class Act>
auto without_gil(const py::object& progress, Act act) {
  DetachedHooks hooks;
  replay::ProgressHook hook;
  if (!progress.is_none()) {
    hook = [&](std::uint64_t done, std::uint64_t total) { hooks.with_gil([&] { report(progress, done, total); }); };
  }
  return act(WaitContext{{}, &hooks}, hook);
}

// Returns (number of the save, rows, bytes written, bytes of all files).
py::tuple save(const Replay& self, const std::string& path, const py::object& progress) {
  const auto report =
      unwrap_files(without_gil(progress, [&](const WaitContext& wait, const replay::ProgressHook& hook) {
        return replay::save(*self.buffer->store(), self.buffer->tables().get(), path, wait, hook);
      }));
  return py::make_tuple(report.save, report.rows, report.written, report.bytes);
}

class Files {
 public:
  explicit Files(const std::string& path) : loader_(unwrap_files(Loader::open(path))) {}

  py::bytes note() const {
    return py::bytes(reinterpret_cast<const char*>(loader_.note().data()), loader_.note().size());
  }
  replay::Spec spec() const { return unwrap_files(loader_.spec()); }
  // Returns the capacity and the chunk of a buffer for the rows; 0 stands for the default of both.
  std::pair<std::uint64_t, std::uint64_t> size_for(std::uint64_t rows, std::uint64_t chunk,
                                                   std::uint64_t streams) const {
    const replay::BufferSize sizes = loader_.size_for({rows, chunk, streams});
    return {sizes.capacity, sizes.chunk};
  }
  // Makes an empty buffer for the rows.
  std::shared_ptr<Replay> make(const replay::Spec& spec, std::uint64_t rows, std::uint64_t chunk, std::uint64_t streams,
                               std::shared_ptr<memory::Arena> arena, const NestTerms& nests) const {
    unwrap(replay::check(spec));
    GilHooks hooks;
    const WaitContext wait{{}, &hooks};
    return replay_of(unwrap_files(loader_.make_buffer(spec, {rows, chunk, streams}, std::move(arena), wait)), nests);
  }
  void load_into(const Replay& replay, const py::object& progress) {
    unwrap_files(without_gil(progress, [&](const WaitContext& wait, const replay::ProgressHook& hook) {
      return loader_.load_into(*replay.buffer->store(), replay.buffer->tables().get(), wait,
                               replay.buffer->spec().samplers, hook);
    }));
  }

 private:
  Loader loader_;
};

}  // namespace

void bind_replay_files(py::module_& module) {
  py::class_<Files>(module, "ReplayFiles", plain_class())
      .def(py::init<const std::string&>(), "path"_a)
      .def_property_readonly("note", &Files::note)
      .def_property_readonly("spec", &Files::spec)
      .def("size_for", &Files::size_for, "capacity"_a, "chunk"_a, "streams"_a)
      .def("make", &Files::make, "spec"_a, "capacity"_a, "chunk"_a, "streams"_a, "arena"_a, "nests"_a)
      .def("load_into", &Files::load_into, "replay"_a, "progress"_a = py::none());
  // Number of rows ever begun in a buffer with chunks of one row. It includes those of the buffer that this one was
  // loaded from.
  module.def(
      "replay_tickets", [](const Replay& self) { return self.buffer->store()->window().tail - 1; }, "replay"_a);
  module.def("save_replay", &save, "replay"_a, "path"_a, "progress"_a = py::none());
}

}  // namespace shmtree::python
