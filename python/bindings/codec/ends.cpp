// Ends of channels, and other objects with a handle, in messages. Their kind is `registered`, with fixed names.
//
// Invariants: Each end in a message that was put is in transit. If a message was encoded and not put, its transfers are
// undone. Only a message from a channel yields ends, and an end gets no more permissions than the channel that it came
// from.
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/portable.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "endpoint/message_transfers.h"

namespace shmtree::python {

bool encode_end(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  const EncodeOptions& options = encoder.options();
  if (options.portable) return refuse_local(Py_TYPE(value)->tp_name), false;
  if (options.transfers == nullptr && options.allow_pickle) return encoder.needs_pickle(value);
  if (options.transfers == nullptr) {
    return encoder.refuse(value,
                          "A %.200s can be sent in messages of channels; any other frame needs a pickle for it, and "
                          "allow_pickle is False");
  }
  if (!encoder.enter()) return false;
  const endpoint::MessageTransfers::Pickling pickling(options.transfers);
  Ref flat(call_python(info.flatten.get(), value));
  if (!flat) return false;
  encoder.out.add_kind(Kind::kRegistered);
  encoder.out.add_name(info.name);
  encoder.keep(Ref::borrow(flat.get()));
  return encoder.node(flat.get()) && encoder.leave();
}

PyObject* decode_end(Decoder& decoder, const ClassInfo& info) {
  if (!decoder.context().for_channel && !decoder.allow_pickle()) {
    PyErr_Format(error_types().pickle_refused,
                 "The frame contains a '%.500s': without allow_pickle=True, only messages of channels may contain one",
                 info.name.c_str());
    return nullptr;
  }
  Ref unflatten = Ref::borrow(info.unflatten.get());
  Ref flat(decoder.node());
  return flat ? call_python(unflatten.get(), flat.get(), decoder.allow_pickle() ? Py_True : Py_False) : nullptr;
}

}  // namespace shmtree::python
