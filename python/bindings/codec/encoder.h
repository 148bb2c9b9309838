// The walk over one Python object. Internal to the encode_*.cpp files.
//
// All of it needs the GIL. What the builder is given the memory of is kept by EncodeSession::keep() until the buffers
// were copied. Calls that may run Python code go through call_python() (gil.h). std::bad_alloc may leave, no other
// exception.
#pragma once

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

  // Before a container's children: counts depth, and finds containers met before. Pair with leave().
  [[gnu::always_inline]] bool enter(PyObject* container) {
    if (!deeper()) [[unlikely]]
      return false;
    // One reference is ours and one the parent's.
    if (Py_REFCNT(container) > 2 && !session_.met().insert(container)) [[unlikely]]
      return met_again(container);
    return true;
  }
  // Whether a queue was given this very array or tensor before in the message, and has to give it out as one object.
  bool is_again(PyObject* leaf) {
    return options_.independent && options_.allow_pickle && Py_REFCNT(leaf) > 2 && !session_.met().insert(leaf);
  }
  // Depth alone, for nodes that are no containers to their user.
  bool deeper() { return out.enter() || too_deep(); }
  bool leave() noexcept {
    out.leave();
    return true;
  }

  bool array(PyArrayObject* array);
  bool text(PyObject* str);
  // The str as a name; false without an error when it is too long for one or not a plain str.
  bool try_name(PyObject* str);
  bool pairs(PyObject* dict);

  // Gives up on native kinds: `object` was met before, and only pickle keeps that.
  bool met_again(PyObject* object);
  // The same: it has none.
  bool needs_pickle(PyObject* object);
  bool wants_pickle() const noexcept { return wants_pickle_; }
  // Some dict turned out in its middle to have other keys than names: walk again, looking at all keys first.
  bool wants_care() const noexcept { return wants_care_; }

  void keep(PyObject* object) { session_.keep(object); }
  void keep(Ref owned) { session_.keep(std::move(owned)); }
  EncodeSession& session() noexcept { return session_; }
  const EncodeOptions& options() const noexcept { return options_; }

  format::FrameBuilder& out;

 private:
  bool too_deep();
  bool new_name(PyObject* str);
  bool unfit_key(PyObject* dict);
  bool integer(PyObject* value);
  bool bytearray(PyObject* value);
  bool dict(PyObject* value);
  bool list(PyObject* value);
  bool tuple(PyObject* value);
  bool number_list(PyObject* value);
  bool by_class(PyObject* value);

  EncodeSession& session_;
  const EncodeOptions& options_;
  const bool careful_;
  bool wants_pickle_ = false;
  bool wants_care_ = false;
};

// Sets RuntimeError("... changed while it was being sent"). Returns false.
bool changed_while_sent(PyObject* container);

// Whether a tuple or frozenset holds nothing but immutable scalars, so that meeting it twice means nothing.
bool is_plain_tuple(PyObject* tuple);

// Handlers, by file.
bool encode_big_int(Encoder& encoder, PyObject* value);  // encode_scalars.cpp
EncodeHandler encode_complex, encode_memoryview, encode_ellipsis, encode_not_implemented, encode_range, encode_slice;

EncodeHandler encode_set, encode_frozenset, encode_deque;  // encode_containers.cpp
EncodeHandler encode_ordered_dict, encode_default_dict, encode_counter;

EncodeHandler encode_date, encode_time, encode_datetime, encode_timedelta, encode_timezone;  // encode_stdlib.cpp
EncodeHandler encode_zoneinfo, encode_decimal, encode_fraction, encode_uuid;
EncodeHandler encode_path, encode_pure_posix_path, encode_pure_windows_path;

EncodeHandler encode_numpy_scalar, encode_dtype, encode_masked_array;  // encode_numpy.cpp
EncodeHandler encode_tensor, encode_parameter, encode_device_array;

EncodeHandler encode_namedtuple, encode_dataclass, encode_enum, encode_registered,
    encode_unknown;  // encode_classes.cpp

EncodeHandler encode_end;  // ends.cpp

}  // namespace shmtree::python
