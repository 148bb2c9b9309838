// The walk that encodes one Python object. Internal to the encode_*.cpp files.
//
// All functions need the GIL. EncodeSession::keep() keeps the memory that the builder refers to until the buffers have
// been copied. Calls that may run Python code go through call_python() (gil.h). No exception but std::bad_alloc may
// escape.
#pragma once

#include <span>
#include <string_view>

#include "bindings/codec/class_registry.h"
#include "bindings/codec/dtypes.h"
#include "bindings/codec/encode.h"
#include "format/frame_builder.h"
#include "shmtree/base/kind.h"

namespace shmtree::python {

// Encodes one object. A function that returns false stops the walk. Then either a Python error is set, or
// wants_pickle() says that the message as a whole must be pickled, or wants_care() that it must be walked again.
//
// A message is pickled as a whole because only one pickler that sees everything preserves identity like the standard
// queue, even between an object that needs pickle and its containers. It also runs each reducer once.
class Encoder {
 public:
  Encoder(EncodeSession& session, const EncodeOptions& options, bool careful) noexcept
      : out(session.builder()), session_(session), options_(options), reduced_(session.reduced()), careful_(careful) {}

  // Encodes an object that its container may drop while Python code runs. Holds a reference meanwhile.
  [[gnu::always_inline]] bool child(PyObject* object) {
    const Ref held = Ref::borrow(object);
    return node(object);
  }

  // Requires that the caller has a reference of its own, besides those of the containers of `object`.
  bool node(PyObject* object);

  // Encodes an object that has an identity, such as a container. `body` appends its node with all children. If the
  // object was met before, appends a reference instead and does not call `body`.
  template <class Body>
  [[gnu::always_inline]] bool once(PyObject* object, Body body) {
    // The only two references are the encoder's and the container's, so the object cannot occur again in the message.
    if (Py_REFCNT(object) <= 2) [[likely]]
      return body();
    return noted(object, body);
  }
  // Calls `body`, which appends the values from which a class will build an object. These must not refer to a container
  // of the object, which is incomplete when the class gets them.
  template <class Body>
  bool sealed(Body body) {
    const std::size_t outer = std::exchange(sealed_, session_.seen().size());
    const bool done = body();
    sealed_ = outer;
    return done;
  }
  // Call it before the children of a node, and leave() after them.
  bool enter() { return out.enter() || too_deep(); }
  bool leave() noexcept {
    out.leave();
    return true;
  }

  bool array(PyArrayObject* array);
  bool array_node(PyArrayObject* array);
  // Encodes one segment of a kCapnp. Returns false with a Python error set if the array cannot be a segment.
  bool segment(PyArrayObject* array);
  bool text(PyObject* str);
  // Encodes a str as letter S of a rule (format/grammar.h).
  bool string(PyObject* str);
  // Lends the memory `extent` if the options allow it; `first` is the address of the first element.
  void lend(PyArrayObject* array, std::span<const std::byte> extent, const void* first, format::ArraySource& source);
  // Sets `text` to the description of a dtype without a number, valid for the session. Returns false on an error, or if
  // only pickle can send `value`.
  bool dtype_text(PyObject* value, PyArray_Descr* descr, ObjectFields objects, std::string_view* text);
  // Appends the str as a name. Returns false, without an error, if it is too long or not an exact str.
  bool try_name(PyObject* str);
  bool pairs(PyObject* dict);

  // Gives up because `object` has no native kind: requests pickle, or fails if it is refused.
  bool needs_pickle(PyObject* object);
  // Reports `object` as refused, with the text `format`; its %.200s is the name of the class.
  bool refuse(PyObject* object, const char* format);
  // Call it if a part of the flattened form of `object` could not be encoded. Reports `object` as refused in place of
  // that part, which has no path. Returns false.
  bool refused_inside(PyObject* object);
  // Returns true after adding None in place of `object`, if the options excuse it.
  bool leaves_out(PyObject* object) noexcept;
  // Call them if a part of a container could not be encoded. They return false, and add the step to that part to the
  // path of the refused object. `number` counts the items or entries that were sent before.
  bool at_index(Py_ssize_t number) { return at(Step::kIndex, number); }
  bool at_key_itself(Py_ssize_t number) { return at(Step::kKeyItself, number); }
  bool at_key(PyObject* key) { return at(Step::kKey, 0, key); }
  bool at_attribute(PyObject* name) { return at(Step::kAttribute, 0, name); }
  bool at_attribute(const char* name) { return at_attribute(Ref(PyUnicode_FromString(name)).get()); }
  // The key may be gone if Python code has changed the dict meanwhile, so it is looked up again.
  [[gnu::noinline, gnu::cold]] bool at_entry(PyObject* dict, Py_ssize_t number);
  bool wants_pickle() const noexcept { return wants_pickle_; }
  // True if a dict turned out to have a key that is not a name. The next walk checks all keys of a dict first.
  bool wants_care() const noexcept { return wants_care_; }

  void keep(PyObject* object) { session_.keep(object); }
  void keep(Ref owned) { session_.keep(std::move(owned)); }
  EncodeSession& session() noexcept { return session_; }
  const EncodeOptions& options() const noexcept { return options_; }

  format::FrameBuilder& out;

 private:
  template <class Body>
  [[gnu::noinline]] bool noted(PyObject* object, Body body) {
    const auto [number, fresh] = session_.seen().note(object, out.kinds());
    if (!fresh) return refer_to(object, number);
    keep(object);  // so that its address is not reused
    const bool done = body();
    session_.seen().close(number);
    if (!done) [[unlikely]]
      session_.refused().leave(object);
    return done;
  }
  bool refer_to(PyObject* object, std::size_t number);
  [[gnu::noinline, gnu::cold]] bool at(Step::How how, Py_ssize_t number, PyObject* name = nullptr);
  bool too_deep();
  bool known_name(PyObject* str);
  bool new_name(PyObject* str);
  bool unfit_key(PyObject* dict);
  // True if the program has registered a reducer for a class that has a native kind.
  bool is_reduced(PyTypeObject* type) const noexcept {
    return reduced_ && PyDict_Contains(reduced_, type_object(type)) == 1;
  }
  bool integer(PyObject* value);
  bool bytearray(PyObject* value);
  bool dict(PyObject* value);
  bool list(PyObject* value);
  bool tuple(PyObject* value);
  bool bytearray_node(PyObject* value);
  bool dict_node(PyObject* value);
  bool list_node(PyObject* value);
  bool tuple_node(PyObject* value);
  bool number_list(PyObject* value);
  bool by_class(PyObject* value);
  bool by_unchecked_class(PyObject* value, const ClassInfo* cached);

  EncodeSession& session_;
  const EncodeOptions& options_;
  PyObject* const reduced_;  // EncodeSession::reduced()
  const bool careful_;
  bool wants_pickle_ = false;
  bool wants_care_ = false;
  bool has_references_ = false;
  std::size_t sealed_ = 0;  // number of objects that were met before the innermost sealed() began
};

// A handler that calls once(`body`).
template <EncodeHandler& body>
bool once(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return encoder.once(value, [&encoder, value, &info] { return body(encoder, value, info); });
}

// Sets RuntimeError("... changed while it was being sent") and returns false.
bool changed_while_sent(PyObject* container);

// Handlers that the shape of a class selects (class_shapes.cpp). They are not registered for a class (kind_codec.h).
// Most are wrapped in once().
bool encode_big_int(Encoder& encoder, PyObject* value);
EncodeHandler encode_namedtuple, encode_dataclass, encode_enum, encode_registered, encode_model, encode_end,
    encode_device_array, encode_unknown;

}  // namespace shmtree::python
