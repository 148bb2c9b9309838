// pack, unpack, describe, register: frames without a channel.
//
// pack and unpack are called per message, so their arguments are taken by CPython's own fast convention.
#include <string_view>

#include "bindings/bind.h"
#include "bindings/codec/class_registry.h"
#include "bindings/codec/decode.h"
#include "bindings/codec/describe.h"
#include "bindings/codec/encode.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/large_copy.h"
#include "bindings/cpython/python_api.h"
#include "bindings/objects/frame_object.h"
#include "bindings/objects/lease.h"

namespace shmtree::python {
namespace {

// The values of a call's keyword arguments. False with TypeError set.
struct Keyword {
  const char* name;
  PyObject** value;  // borrowed
};

template <std::size_t N>
bool take_keywords(const char* function, PyObject* const* values, PyObject* names, const Keyword (&known)[N]) {
  const Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const Keyword* match = nullptr;
    for (const Keyword& keyword : known) {
      if (PyUnicode_CompareWithASCIIString(name, keyword.name) == 0) match = &keyword;
    }
    if (!match || *match->value) {
      PyErr_Format(PyExc_TypeError, match ? "%s() got '%U' twice" : "%s() got an unexpected argument '%U'", function,
                   name);
      return false;
    }
    *match->value = values[i];
  }
  return true;
}

// 1, 0, or -1 with an error.
int truth(PyObject* value, int otherwise) {
  return value ? PyObject_IsTrue(value) : otherwise;
}

PyObject* pack(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  PyObject* object = nargs > 0 ? args[0] : nullptr;
  PyObject* allow = nargs > 1 ? args[1] : nullptr;
  if (names && !take_keywords("pack", args + nargs, names, {{"obj", &object}, {"allow_pickle", &allow}}))
    return nullptr;
  if (!object || nargs > 2) {
    PyErr_SetString(PyExc_TypeError, "pack() takes an object and allow_pickle");
    return nullptr;
  }
  const int allow_pickle = truth(allow, 1);
  if (allow_pickle < 0) return nullptr;
  EncodeOptions options;
  options.allow_pickle = allow_pickle == 1;
  BorrowedSession session;
  if (!session->encode(object, options)) return nullptr;
  format::FrameBuilder& builder = session->builder();
  Frame* frame = new_frame(builder.total_bytes());
  if (!frame) return nullptr;
  Ref result(reinterpret_cast<PyObject*>(frame));
  builder.write_metadata(frame->data);
  if (builder.buffer_bytes() > kReleaseGilBytes) {
    const WithoutGil unlocked;
    builder.copy_buffers(frame->data);
  } else {
    builder.copy_buffers(frame->data);
  }
  return result.release();
}

// The buffer given to unpack, until the first view needs it for longer.
struct Input {
  Py_buffer buffer{};
  ~Input() {
    if (buffer.obj) PyBuffer_Release(&buffer);
  }
  static PyObject* make_owner(void* state, std::uint32_t) {
    return new_buffer_lease(std::move(static_cast<Input*>(state)->buffer));
  }
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
  }
};

// False with a Python error set.
bool parse_copy(PyObject* value, CopyPolicy* policy) {
  *policy = CopyPolicy::kAuto;
  if (!value || value == Py_None) return true;
  const int copy = PyObject_IsTrue(value);
  *policy = copy ? CopyPolicy::kAll : CopyPolicy::kNone;
  return copy >= 0;
}

PyObject* unpack(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  PyObject *source = nargs > 0 ? args[0] : nullptr, *copy = nullptr, *allow = nullptr;
  if (names &&
      !take_keywords("unpack", args + nargs, names, {{"buffer", &source}, {"copy", &copy}, {"allow_pickle", &allow}})) {
    return nullptr;
  }
  if (!source || nargs > 1) {
    PyErr_SetString(PyExc_TypeError, "unpack() takes one buffer, and copy and allow_pickle by name");
    return nullptr;
  }
  const int allow_pickle = truth(allow, 0);
  DecodeContext context;
  if (allow_pickle < 0 || !parse_copy(copy, &context.copy)) return nullptr;
  Input input;
  if (PyObject_GetBuffer(source, &input.buffer, PyBUF_SIMPLE) != 0) return nullptr;
  context.allow_pickle = allow_pickle == 1 || is_frame(source);
  context.writable = !input.buffer.readonly;
  context.make_owner = Input::make_owner;
  context.state = &input;
  return decode(input.bytes(), context);
}

PyObject* describe(PyObject*, PyObject* source) {
  Input input;
  if (PyObject_GetBuffer(source, &input.buffer, PyBUF_SIMPLE) != 0) return nullptr;
  Result<std::string> text = describe_frame(input.bytes());
  if (text.ok()) return PyUnicode_DecodeUTF8(text->data(), static_cast<Py_ssize_t>(text->size()), "backslashreplace");
  if (text.code() != Code::kCorrupt) return raise(text.error());
  PyErr_SetString(error_types().corrupt_message, text.error().message.c_str());
  return nullptr;
}

PyObject* register_kind(PyObject*, PyObject* args) {
  PyObject *cls = nullptr, *flatten = nullptr, *unflatten = nullptr;
  if (!PyArg_ParseTuple(args, "OOO:register", &cls, &flatten, &unflatten)) return nullptr;
  if (!register_class(cls, flatten, unflatten)) return nullptr;
  Py_RETURN_NONE;
}

// For instances of registered classes inside a pickle.
PyObject* unflatten(PyObject*, PyObject* args) {
  const char* name = nullptr;
  Py_ssize_t size = 0;
  PyObject* flat = nullptr;
  if (!PyArg_ParseTuple(args, "s#O", &name, &size, &flat)) return nullptr;
  const ClassInfo* info = registered_class({name, static_cast<std::size_t>(size)});
  if (!info) {
    PyErr_Format(error_types().pickle_refused, "The message needs '%.500s', which is not registered here", name);
    return nullptr;
  }
  Ref function = Ref::borrow(info->unflatten.get());
  return call_python(function.get(), flat);
}

constexpr const char* kPackDoc =
    "pack(obj, allow_pickle=True)\n--\n\n"
    "Encodes a nested object as a Frame, a read-only buffer.\n\n"
    "Whatever has no native kind is pickled (protocol 5, its buffers out of band), and then the whole object is,\n"
    "so that identity is kept as with pickle. allow_pickle=False raises PickleRefused instead. ValueError when\n"
    "the object is nested deeper than 1,000 levels; what the object's own code raises comes through.";

constexpr const char* kUnpackDoc =
    "unpack(buffer, *, copy=None, allow_pickle=False)\n--\n\n"
    "The object in a frame, which may be any contiguous buffer.\n\n"
    "copy=None views arrays of 4 KiB and more in frames over 16 KiB, and copies the rest; True copies all; False\n"
    "views all. Views keep the buffer, and are writable if it is and the array was. A Frame of this process is\n"
    "trusted; in any other buffer pickles, and classes of modules not imported yet, raise PickleRefused unless\n"
    "allow_pickle=True. CorruptMessage when the bytes are no frame.";

PyMethodDef methods[] = {
    {"pack", as_method<pack>(), METH_FASTCALL | METH_KEYWORDS, kPackDoc},
    {"unpack", as_method<unpack>(), METH_FASTCALL | METH_KEYWORDS, kUnpackDoc},
    {"_describe", as_method<describe>(), METH_O,
     "The tree of a frame as text. CorruptMessage when the bytes are no frame."},
    {"_register", as_method<register_kind>(), METH_VARARGS, "See shmtree.register."},
    {"_unflatten", as_method<unflatten>(), METH_VARARGS, "Rebuilds an instance of a registered class by name."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_pack(pybind11::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace shmtree::python
