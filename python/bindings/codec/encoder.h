// The walk over one Python object. Internal to the encode_*.cpp files.
//
// All of it needs the GIL. What the builder is given the memory of is kept by EncodeSession::keep() until the buffers
// were copied. Calls that may run Python code go through call_python() (gil.h). std::bad_alloc may leave, no other
// exception.
#pragma once

#include <span>
#include <string_view>

#include "bindings/codec/class_registry.h"
#include "bindings/codec/encode.h"
#include "format/frame_builder.h"
#include "shmtree/kind.h"

namespace shmtree::python {

// Functions that return bool: false stops the walk. Then either a Python error is set, or wants_pickle() says that the
// message as a whole has to go through pickle, or wants_care() that it is to be walked again.
//
// Why as a whole: only one pickler that sees everything keeps identity as the standard queue does, also between an
// object that needs pickle and the containers around it; and reducers run once.
class Encoder {
 public:
  Encoder(EncodeSession& session, const EncodeOptions& options, bool careful) noexcept
      : out(session.builder()), session_(session), options_(options), careful_(careful) {}

  // An object whose owner may drop it while Python code runs. Holds it meanwhile.
  [[gnu::always_inline]] bool child(PyObject* object) {
    const Ref held = Ref::borrow(object);
    return node(object);
  }

  // The caller has a reference of its own, besides those of the containers that `object` is in.
  bool node(PyObject* object);

  // For whatever has an identity, containers above all: `body` appends its node and all below it, and is not called for
  // an object that was met before, which becomes a reference.
  template <class Body>
  [[gnu::always_inline]] bool once(PyObject* object, Body body) {
    // One reference is ours and one the parent's: it cannot be met again.
    if (Py_REFCNT(object) <= 2) [[likely]]
      return body();
    return noted(object, body);
  }
  // While `body` appends what a class makes an object from: that cannot be done with a part of what the object is in.
  template <class Body>
  bool sealed(Body body) {
    const std::size_t outer = std::exchange(sealed_, session_.met().size());
    const bool done = body();
    sealed_ = outer;
    return done;
  }
  // Before a node's children. Pair with leave().
  bool deeper() { return out.enter() || too_deep(); }
  bool leave() noexcept {
    out.leave();
    return true;
  }

  bool array(PyArrayObject* array);
  bool array_node(PyArrayObject* array);
  // One segment of a kCapnp. False with a Python error set if the array cannot be one.
  bool segment(PyArrayObject* array);
  bool text(PyObject* str);
  // Encodes a str as letter S of a rule (format/grammar.h).
  bool string(PyObject* str);
  // Lends the memory `extent`, if the options say so; `first` is the address of the first element.
  void lend(PyArrayObject* array, std::span<const std::byte> extent, const void* first, format::ArraySource& source);
  // Returns in `text` the description of a dtype without a number, valid for the session. False on an error, or if only
  // pickle can send `value`.
  bool dtype_text(PyObject* value, PyArray_Descr* descr, bool with_objects, std::string_view* text);
  // The str as a name; false without an error when it is too long for one or not a plain str.
  bool try_name(PyObject* str);
  bool pairs(PyObject* dict);

  // Gives up on native kinds: `object` has none.
  bool needs_pickle(PyObject* object);
  // What needs pickle is not found again in `object`, which was sent as something else: that is what is refused.
  void refused_inside(PyObject* object) { session_.move_refused(object); }
  bool wants_pickle() const noexcept { return wants_pickle_; }
  // Some dict turned out in its middle to have other keys than names: walk again, looking at all keys first.
  bool wants_care() const noexcept { return wants_care_; }

  void keep(PyObject* object) { session_.keep(object); }
  void keep(Ref owned) { session_.keep(std::move(owned)); }
  EncodeSession& session() noexcept { return session_; }
  const EncodeOptions& options() const noexcept { return options_; }

  format::FrameBuilder& out;

 private:
  template <class Body>
  [[gnu::noinline]] bool noted(PyObject* object, Body body) {
    const auto [number, fresh] = session_.met().note(object, out.kinds());
    if (!fresh) return refer_to(object, number);
    keep(object);  // so that its address means it
    if (!body()) return false;
    session_.met().close(number);
    return true;
  }
  bool refer_to(PyObject* object, std::size_t number);
  bool too_deep();
  bool new_name(PyObject* str);
  bool unfit_key(PyObject* dict);
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
  bool by_unchecked_class(PyObject* value, const ClassInfo* known);

  EncodeSession& session_;
  const EncodeOptions& options_;
  const bool careful_;
  bool wants_pickle_ = false;
  bool wants_care_ = false;
  bool has_references_ = false;
  std::size_t sealed_ = 0;  // of the objects met, those before the innermost sealed() began
};

// A handler that is once(`body`).
template <EncodeHandler& body>
bool once(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return encoder.once(value, [&encoder, value, &info] { return body(encoder, value, info); });
}

// Sets RuntimeError("... changed while it was being sent"). Returns false.
bool changed_while_sent(PyObject* container);

// Handlers that are chosen by the shape of a class (class_shapes.cpp), not registered for a class (kind_codec.h). Most
// are used in once().
bool encode_big_int(Encoder& encoder, PyObject* value);
EncodeHandler encode_namedtuple, encode_dataclass, encode_enum, encode_registered, encode_model, encode_end,
    encode_device_array, encode_unknown;

}  // namespace shmtree::python
