// Maps and reads recordings. The public interface is python/shmtree/recording.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "recording/recording_reader.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using recording::Count;
using recording::Cursor;
using recording::Entry;
using recording::Reader;

namespace {

template <class T>
T sound(Result<T> result) {
  if (result.ok()) return std::move(*result);
  raise_from_frame(result.error());
  throw py::error_already_set();
}

py::dict dict_of(const std::vector<Count>& counts) {
  py::dict out;
  for (const Count& one : counts) out[py::str(one.channel)] = one.messages;
  return out;
}

// A mapped recording. Its buffer is the whole file.
class MappedRecording {
 public:
  MappedRecording(int fd, std::string path)
      : reader_(sound(without_gil([&] { return Reader::map(fd, std::move(path)); }))) {}

  const Reader& reader() const noexcept { return *reader_; }
  py::buffer_info buffer() const {
    auto* const data = const_cast<std::byte*>(reader_->bytes().data());  // the buffer is exported as read-only
    return {data, 1, "B", static_cast<py::ssize_t>(reader_->bytes().size()), true};
  }

 private:
  std::shared_ptr<const Reader> reader_;
};

// Iterates over the messages. Their frames are slices of one memoryview, which keeps the file mapped.
class Entries {
 public:
  explicit Entries(py::object recording)
      : reader_(recording.cast<const MappedRecording&>().reader()),
        view_(own(PyMemoryView_FromObject(recording.ptr()))),
        cursor_(reader_) {
    for (const Count& one : reader_.channels()) names_.append(py::str(one.channel));
  }

  py::tuple next() {
    Entry entry;
    if (!sound(advance(entry))) throw py::stop_iteration();
    const auto begin = static_cast<py::ssize_t>(entry.frame.data() - reader_.bytes().data());
    const py::slice part(begin, begin + static_cast<py::ssize_t>(entry.frame.size()), 1);
    return py::make_tuple(names_[entry.channel], entry.time_ns, entry.sequence, view_[part]);
  }

 private:
  Result<bool> advance(Entry& entry) {
    const std::lock_guard guard(mutex_);
    return cursor_.next(entry);
  }

  const Reader& reader_;
  py::object view_;
  py::list names_;
  Mutex mutex_;
  Cursor cursor_;  // under mutex_
};

}  // namespace

void bind_recording(py::module_& module) {
  py::class_<Entries>(module, "RecordedEntries", plain_class())
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &Entries::next);
  py::class_<MappedRecording>(module, "MappedRecording", plain_class(), py::buffer_protocol())
      .def(py::init<int, std::string>(), "fd"_a, "path"_a)
      .def_buffer(&MappedRecording::buffer)
      .def_property_readonly("channels", [](const MappedRecording& self) { return dict_of(self.reader().channels()); })
      .def("kind",
           [](const MappedRecording& self, const std::string& channel) {
             for (const Count& one : self.reader().channels()) {
               if (one.channel == channel) return one.kind;
             }
             return std::string();
           })
      .def_property_readonly("missed", [](const MappedRecording& self) { return dict_of(self.reader().missed()); })
      .def_property_readonly("whole", [](const MappedRecording& self) { return self.reader().is_whole(); })
      .def("__len__", [](const MappedRecording& self) { return self.reader().size(); })
      .def("__iter__", [](py::object self) { return std::make_unique<Entries>(std::move(self)); });
}

}  // namespace shmtree::python
