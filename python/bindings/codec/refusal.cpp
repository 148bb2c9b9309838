#include "bindings/codec/refusal.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/codec/describe.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

// Takes the current exception if it is of that class. Otherwise returns null.
Ref take_if(PyObject* cls) {
  return PyErr_Occurred() && PyErr_ExceptionMatches(cls) ? take_exception() : Ref();
}

Ref take_refusal() {
  return take_if(error_types().pickle_refused);
}

// An ordinary error during the explanation must not hide the refusal itself.
void give_back(Ref refusal) {
  if (clear_ordinary_exception()) set_exception(std::move(refusal));
}

bool add_text(PyObject* refusal, PyObject* more) {
  Ref text(PyUnicode_FromFormat("%S%U", refusal, more));
  Ref arguments(text ? PyTuple_Pack(1, text.get()) : nullptr);
  return arguments && PyObject_SetAttrString(refusal, "args", arguments.get()) == 0;
}

bool has_no_path(PyObject* refusal) {
  const Ref path(PyObject_GetAttrString(refusal, "path"));
  return path.get() == Py_None;
}

// `path` is a str.
bool add_path(PyObject* refusal, PyObject* path) {
  Ref text(PyUnicode_GET_LENGTH(path) == 0 ? PyUnicode_FromString(". It is the message itself")
                                           : PyUnicode_FromFormat(". It is at %U of the message", path));
  return text && add_text(refusal, text.get()) && PyObject_SetAttrString(refusal, "path", path) == 0;
}

// Appends the name of the refusing end or call to a text that mentions allow_pickle.
bool add_refuser(PyObject* refusal, const char* refuser) {
  const Ref said(PyObject_Str(refusal));
  const char* characters = said ? PyUnicode_AsUTF8(said.get()) : nullptr;
  if (!characters || std::string_view(characters).find("allow_pickle") == std::string_view::npos) return false;
  Ref text(PyUnicode_FromFormat("; it was refused because of the allow_pickle=False of %s", refuser));
  return text && add_text(refusal, text.get());
}

// Appends a way to send `refused` without pickle, if the package knows one.
void add_remedy(PyObject* refusal, PyObject* refused) {
  Ref text(call_python(package().remedy_for, refused));
  if (text && PyUnicode_Check(text.get()) && PyUnicode_GET_LENGTH(text.get()) != 0) add_text(refusal, text.get());
}

}  // namespace

void explain_refused_object(EncodeSession& session, const char* refuser) {
  const RefusedObject refused = std::move(session.refused());
  Ref refusal = take_refusal();
  if (!refusal) return;
  // Without a refused object, the object's own code raised the exception.
  if (refused && has_no_path(refusal.get())) {
    const Ref path = refused.path();
    if ((path && add_path(refusal.get(), path.get())) || clear_ordinary_exception()) {
      add_refuser(refusal.get(), refuser);
    }
    if (clear_ordinary_exception()) add_remedy(refusal.get(), refused.object());
  }
  give_back(std::move(refusal));
}

void explain_node(PyObject* cls, std::span<const std::byte> frame, std::size_t number) {
  Ref refusal = take_if(cls);
  if (!refusal) return;
  if (has_no_path(refusal.get())) {
    const std::optional<std::string> found = facts_of_node(frame, number).path;
    const Ref path(found ? PyUnicode_DecodeUTF8(found->data(), static_cast<Py_ssize_t>(found->size()), "replace")
                         : nullptr);
    if (path) add_path(refusal.get(), path.get());
  }
  give_back(std::move(refusal));
}

void name_refuser(const char* refuser) {
  Ref refusal = take_refusal();
  if (!refusal) return;
  add_refuser(refusal.get(), refuser);
  give_back(std::move(refusal));
}

}  // namespace shmtree::python
