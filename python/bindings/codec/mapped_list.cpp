// _core.MappedList: a shared list that this process has mapped, and _core.ListGroup. The public interface is
// python/shmtree/_ipc.
//
// Programs ask for an item at a time, so `item` uses CPython's vectorcall convention.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "bindings/bind.h"
#include "bindings/codec/decode.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/python_api.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/objects/view_owner.h"
#include "platform/group_file.h"
#include "shared_list/list_reader.h"

namespace shmtree::python {
namespace {

using shared_list::ListReader;

struct MappedList {
  PyObject_HEAD std::shared_ptr<const ListReader> reader;
};

const std::shared_ptr<const ListReader>& reader_of(PyObject* self) noexcept {
  return reinterpret_cast<MappedList*>(self)->reader;
}

// Returns an owner of views of the frame. It keeps the whole list mapped.
PyObject* new_frame_owner(std::shared_ptr<const ListReader> reader, std::span<const std::byte> frame) {
  auto* const data = const_cast<std::byte*>(frame.data());  // the owner is read-only
  return new_view_owner(std::const_pointer_cast<ListReader>(std::move(reader)), data, frame.size(), false);
}

struct FrameOwner final : ViewOwners {
  const std::shared_ptr<const ListReader>& reader;
  std::span<const std::byte> frame;
  FrameOwner(const std::shared_ptr<const ListReader>& list, std::span<const std::byte> bytes)
      : reader(list), frame(bytes) {}
  PyObject* make(std::uint32_t) override { return new_frame_owner(reader, frame); }
};

PyObject* make_list(PyTypeObject* type, PyObject* args, PyObject* names) {
  static const char* const kNames[] = {"fd", "what", "offset", nullptr};
  int fd = -1;
  const char* what = nullptr;
  unsigned long long offset = 0;
  if (!PyArg_ParseTupleAndKeywords(args, names, "isK:MappedList", const_cast<char**>(kNames), &fd, &what, &offset)) {
    return nullptr;
  }
  auto reader = without_gil([&] { return ListReader::map(fd, what, offset); });
  if (!reader) return raise_from_frame(reader.error());
  PyObject* const self = type->tp_alloc(type, 0);
  if (self) new (&reinterpret_cast<MappedList*>(self)->reader) std::shared_ptr<const ListReader>(std::move(*reader));
  return self;
}

void dealloc(PyObject* self) {
  reinterpret_cast<MappedList*>(self)->reader.~shared_ptr();
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(reader_of(self)->size());
}

// Adds the list, after the text in `before`, to the message of a CorruptMessage, IncompatibleMessage or PickleRefused.
void name_list(PyObject* self, const std::string& before) {
  const Package& types = package();
  const auto is_a = [](PyObject* type) { return PyErr_ExceptionMatches(type) != 0; };
  if (!is_a(types.corrupt_message) && !is_a(types.incompatible_message) && !is_a(types.pickle_refused)) return;
  Ref error = take_exception();
  const std::string list = reader_of(self)->description();
  const Ref args(PyUnicode_FromFormat("%s%S (%s)", before.c_str(), error.get(), list.c_str()));
  const Ref changed(args ? PyTuple_Pack(1, args.get()) : nullptr);
  if (changed) PyObject_SetAttrString(error.get(), "args", changed.get());
  set_exception_again(std::move(error));
}

// Finds the frame of an item. Returns false with a Python error set.
bool find_frame(PyObject* self, PyObject* number, std::span<const std::byte>& frame) {
  const std::size_t place = PyLong_AsSize_t(number);
  if (place == static_cast<std::size_t>(-1) && PyErr_Occurred()) return false;
  if (place >= reader_of(self)->size()) return PyErr_SetString(PyExc_IndexError, "no such item"), false;
  const auto found = reader_of(self)->frame(place);
  if (!found) {
    raise_from_frame(found.error());
    return name_list(self, ""), false;
  }
  frame = *found;
  return true;
}

PyObject* frame_of(PyObject* self, PyObject* number) {
  std::span<const std::byte> frame;
  if (!find_frame(self, number, frame)) return nullptr;
  const Ref owner(new_frame_owner(reader_of(self), frame));
  return owner ? PyMemoryView_FromObject(owner.get()) : nullptr;
}

PyObject* item(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) return PyErr_Format(PyExc_TypeError, "item() takes 2 arguments, but %zd were given", nargs);
  std::span<const std::byte> frame;
  const int allow_pickle = PyObject_IsTrue(args[1]);
  if (allow_pickle < 0 || !find_frame(self, args[0], frame)) return nullptr;
  FrameOwner owner(reader_of(self), frame);
  DecodeContext context;
  context.copy = CopyPolicy::kNone;
  context.allow_pickle = allow_pickle == 1;
  context.writable = false;
  context.owners = &owner;
  PyObject* const object = decode(frame, context);
  if (object) return object;
  if (!context.allow_pickle) name_refuser("this list");
  name_list(self, "item " + std::to_string(PyLong_AsSize_t(args[0])) + ": ");
  return nullptr;
}

PyObject* get_nbytes(PyObject* self, void*) {
  return PyLong_FromSize_t(reader_of(self)->bytes().size());
}
PyObject* get_identity(PyObject* self, void*) {
  const auto& identity = reader_of(self)->identity();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(identity.data()),
                                   static_cast<Py_ssize_t>(identity.size()));
}

PyObject* get_where(PyObject* self, void*) {
  return PyUnicode_FromString(reader_of(self)->where().c_str());
}

PyGetSetDef attributes[] = {
    {"nbytes", guarded<get_nbytes>, nullptr, nullptr, nullptr},
    {"identity", guarded<get_identity>, nullptr, nullptr, nullptr},
    {"where", guarded<get_where>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"frame", as_method<frame_of>(), METH_O, nullptr},
    {"item", as_method<item>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(guarded<make_list>)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_getset, attributes},
    {Py_tp_methods, methods},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {0, nullptr},
};

PyType_Spec spec = {"shmtree._core.MappedList", sizeof(MappedList), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                    slots};

}  // namespace

void bind_mapped_list(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace py::literals;
  using platform::GroupFile;
  py::class_<GroupFile>(module, "ListGroup", plain_class())
      .def(py::init([](std::uint64_t nbytes) { return unwrap(GroupFile::make("shmtree-list", nbytes)); }), "nbytes"_a)
      .def(
          "add",
          [](GroupFile& self, int fd, std::uint64_t nbytes) {
            return unwrap(without_gil([&] { return self.add(fd, nbytes); }));
          },
          "fd"_a, "nbytes"_a)
      .def("open", [](const GroupFile& self) { return unwrap(self.open()).release(); });
  const Ref type(PyType_FromSpec(&spec));
  if (!type || PyModule_AddObjectRef(module.ptr(), "MappedList", type.get()) != 0) throw pybind11::error_already_set();
}

}  // namespace shmtree::python
