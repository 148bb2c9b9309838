// pack, unpack, describe, register: frames without a channel.
//
// Programs call pack and unpack once per message, so both use CPython's vectorcall convention.
#include <string_view>

#include "bindings/bind.h"
#include "bindings/codec/class_registry.h"
#include "bindings/codec/decode.h"
#include "bindings/codec/describe.h"
#include "bindings/codec/encode.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/python_api.h"
#include "bindings/objects/frame.h"
#include "bindings/objects/view_owner.h"
#include "endpoint/message_transfers.h"
#include "platform/copy.h"

namespace shmtree::python {
namespace {

PyObject* packed(PyObject* object, const EncodeOptions& options) {
  BorrowedSession session;
  const Encoded how = session->encode(object, options);
  if (how == kNotEncoded) {
    if (!options.allow_pickle) explain_refused_object(*session, "this call");
    return nullptr;
  }
  format::FrameBuilder& builder = session->builder();
  Frame* frame = new_frame(builder.total_bytes());
  if (!frame) return nullptr;
  frame->contents.has_pickle = how == kPickled;
  frame->known_portable = options.portable;
  builder.write_metadata(frame->data);
  const WithoutGil unlocked(builder.buffer_bytes() > platform::kLongCopyBytes);
  builder.copy_buffers(frame->data);
  return reinterpret_cast<PyObject*>(frame);
}

PyObject* pack(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  static constexpr Signature<3> kSignature{"pack", {"obj", "allow_pickle", "portable"}, 2, 1};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, names, given)) return nullptr;
  const int allow_pickle = truth_of(given[1], 1), portable = truth_of(given[2], 0);
  if (allow_pickle < 0 || portable < 0) return nullptr;
  return packed(given[0], {.allow_pickle = allow_pickle == 1, .portable = portable == 1});
}

PyObject* pack_aside(PyObject*, PyObject* object) {
  endpoint::MessageTransfers transfers;  // undone at the end of the scope
  return packed(object, {.transfers = &transfers});
}

PyObject* first_refused(PyObject*, PyObject* args) {
  endpoint::MessageTransfers transfers;  // undone at the end of the scope
  EncodeOptions options{.allow_pickle = false, .transfers = &transfers};
  PyObject* object = nullptr;
  if (!PyArg_ParseTuple(args, "OO!:_first_refused", &object, &PyList_Type, &options.excused)) return nullptr;
  BorrowedSession session;
  if (session->encode(object, options) != kNotEncoded) Py_RETURN_NONE;
  const RefusedObject refused = std::move(session->refused());
  if (!clear_ordinary_exception()) return nullptr;  // sending the object raises an ordinary one again
  if (!refused) Py_RETURN_NONE;
  Ref inner = refused.path_of_inner(), outer = refused.path();
  return inner && outer ? Py_BuildValue("OOO", inner.get(), refused.object(), outer.get()) : nullptr;
}

// The buffer passed to unpack(). The first view takes it over, to keep it for longer than the call.
struct Input final : ViewOwners {
  Py_buffer buffer{};
  Input() = default;
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() override {
    if (buffer.obj) PyBuffer_Release(&buffer);
  }
  PyObject* make(std::uint32_t) override { return new_buffer_owner(std::move(buffer)); }
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
  }
};

PyObject* unpack(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  static constexpr Signature<3> kSignature{"unpack", {"buffer", "copy", "allow_pickle"}, 1, 1};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, names, given)) return nullptr;
  const int allow_pickle = truth_of(given[2], 0);
  DecodeContext context;
  if (allow_pickle < 0 || !parse_copy_policy(given[1], &context.copy)) return nullptr;
  Input input;
  if (PyObject_GetBuffer(given[0], &input.buffer, PyBUF_SIMPLE) != 0) return nullptr;
  if (is_frame(given[0])) {
    context.allow_pickle = as_frame(given[0])->trusted;
    context.for_channel = as_frame(given[0])->from_channel;
  }
  context.allow_pickle = context.allow_pickle || allow_pickle == 1;
  context.writable = !input.buffer.readonly;
  context.owners = &input;
  PyObject* object = decode(input.bytes(), context);
  if (!object && !context.allow_pickle) name_refuser("this call");
  return object;
}

PyObject* describe_object(PyObject*, PyObject* source) {
  Input input;
  if (PyObject_GetBuffer(source, &input.buffer, PyBUF_SIMPLE) != 0) return nullptr;
  Result<std::string> text = describe_frame(input.bytes());
  if (text.ok()) return PyUnicode_DecodeUTF8(text->data(), static_cast<Py_ssize_t>(text->size()), "backslashreplace");
  return raise_from_frame(text.error());
}

PyObject* register_kind(PyObject*, PyObject* args) {
  PyObject *cls = nullptr, *flatten = nullptr, *unflatten = nullptr;
  int in_channels = 0;
  if (!PyArg_ParseTuple(args, "OOO|p:register", &cls, &flatten, &unflatten, &in_channels)) return nullptr;
  if (!register_class(cls, flatten, unflatten, in_channels != 0)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* add_kind_of_package(PyObject*, PyObject* args) {
  const char* name = nullptr;
  PyObject *cls = nullptr, *parts = nullptr, *build = nullptr, *copied_bytes = nullptr;
  if (!PyArg_ParseTuple(args, "sOOO|O:_add_kind", &name, &cls, &parts, &build, &copied_bytes)) return nullptr;
  if (!add_kind(name, cls, parts, build, copied_bytes)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* register_end_kind(PyObject*, PyObject* args) {
  PyObject *cls = nullptr, *flatten = nullptr, *unflatten = nullptr;
  const char* name = nullptr;
  if (!PyArg_ParseTuple(args, "OsOO:_register_end", &cls, &name, &flatten, &unflatten)) return nullptr;
  if (!register_end(cls, name, flatten, unflatten)) return nullptr;
  Py_RETURN_NONE;
}

// Builds instances of registered classes inside a pickle.
PyObject* unflatten(PyObject*, PyObject* args) {
  const char* name = nullptr;
  Py_ssize_t size = 0;
  PyObject* flat = nullptr;
  if (!PyArg_ParseTuple(args, "s#O", &name, &size, &flat)) return nullptr;
  const ClassInfo* info = registered_class({name, static_cast<std::size_t>(size)});
  if (!info) {
    return PyErr_Format(error_types().pickle_refused,
                        "The message needs '%.500s', which is not registered here: call shmtree.register() for it",
                        name);
  }
  Ref function = Ref::borrow(info->unflatten.get());
  return info->in_channels ? call_python(function.get(), flat, Py_True) : call_python(function.get(), flat);
}

PyObject* imported_module_or_none(PyObject*, PyObject* name) {
  Ref module = imported_module(name);
  return module || PyErr_Occurred() ? module.release() : Py_NewRef(Py_None);
}

PyMethodDef methods[] = {
    {"pack", as_method<pack>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_pack_aside", as_method<pack_aside>(), METH_O, nullptr},
    {"_first_refused", as_method<first_refused>(), METH_VARARGS, nullptr},
    {"unpack", as_method<unpack>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_describe", as_method<describe_object>(), METH_O, nullptr},
    {"_register", as_method<register_kind>(), METH_VARARGS, nullptr},
    {"_register_end", as_method<register_end_kind>(), METH_VARARGS, nullptr},
    {"_add_kind", as_method<add_kind_of_package>(), METH_VARARGS,

     "_add_kind(name, cls, parts, build, copied_bytes): sends instances of exactly `cls` as the kind of that name.\n"
     "parts(object) returns the tuple that its rule in docs/internals/frame.md needs, and build(*parts, trusted)\n"
     "returns the object. If `build` copies memory of the message when it does not trust the sender,\n"
     "copied_bytes(*parts) returns how many bytes."},
    {"_imported_module", as_method<imported_module_or_none>(), METH_O, nullptr},
    {"_unflatten", as_method<unflatten>(), METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_pack(pybind11::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace shmtree::python
