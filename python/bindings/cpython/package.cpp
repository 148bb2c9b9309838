#include "bindings/cpython/package.h"

namespace shmtree::python {
namespace {

Package members{};

}  // namespace

const Package& package() noexcept {
  return members;
}

bool set_package(PyObject* given) {
  const struct {
    PyObject** slot;
    const char* name;
  } wanted[] = {
      {&members.error, "Error"},
      {&members.channel_closed, "ChannelClosed"},
      {&members.shut_down, "ShutDown"},
      {&members.peer_died, "PeerDied"},
      {&members.worker_failed, "WorkerFailed"},
      {&members.message_too_large, "MessageTooLarge"},
      {&members.out_of_shared_memory, "OutOfSharedMemory"},
      {&members.corrupt_message, "CorruptMessage"},
      {&members.incompatible_message, "IncompatibleMessage"},
      {&members.pickle_refused, "PickleRefused"},
      {&members.not_portable, "NotPortable"},
      {&members.incompatible_arena, "IncompatibleArena"},
      {&members.overrun, "Overrun"},
      {&members.unused_end_warning, "UnusedEndWarning"},
      {&members.queue_full, "Full"},
      {&members.queue_empty, "Empty"},
      {&members.describe_dtype, "describe_dtype"},
      {&members.parse_dtype, "parse_dtype"},
      {&members.dtype_of_other_package, "dtype_of_other_package"},
      {&members.has_torch, "has_torch"},
      {&members.tensor_parts, "tensor_parts"},
      {&members.tensor_build, "tensor_build"},
      {&members.device_leaf, "device_leaf"},
      {&members.reducers, "reducers"},
      {&members.stand_in, "StandIn"},
      {&members.remedy_for, "remedy_for"},
      {&members.explain_unsendable, "explain_unsendable"},
      {&members.key_text, "key_text"},
      {&members.attrs_fields, "attrs_fields"},
      {&members.is_model, "is_model"},
      {&members.model_state, "model_state"},
      {&members.model_build, "model_build"},
  };
  for (const auto& [slot, name] : wanted) {
    PyObject* found = PyMapping_GetItemString(given, name);
    if (!found) return false;
    Py_XDECREF(std::exchange(*slot, found));
  }
  return true;
}

}  // namespace shmtree::python
