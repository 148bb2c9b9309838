// Frames as Python objects.
//
// All calls need the GIL. Frames may come from anybody: what does not fit is an exception, never a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bindings/cpython/python_api.h"
#include "endpoint/copy_policy.h"

namespace shmtree::python {

using endpoint::CopyPolicy;

// What a call's argument `copy` says; null and None: kAuto. False with a Python error set.
bool parse_copy_policy(PyObject* value, CopyPolicy* policy);

inline constexpr std::uint64_t kSmallArrayBytes = 4 << 10;

// Torch has no read-only tensors: which of those on memory that may not be written are views all the same.
enum class TensorViews : std::uint8_t {
  kExternal,  // those on blocks of their own, which their sender shows
  kNone,
  kAll,
};

// Memory of another block that a message refers to.
struct ExternalBlock {
  std::span<std::byte> bytes{};
  bool writable = false;
};

// Stands for the frame itself where blocks are numbered.
inline constexpr std::uint32_t kOwnFrame = UINT32_MAX;

// Creates the object that is the `base` of a block's views.
class ViewOwners {
 public:
  virtual ~ViewOwners() = default;
  // A new reference, or null with a Python error set. Called at most once for the frame (kOwnFrame) and for each
  // external block, when the first view of it is made.
  virtual PyObject* make(std::uint32_t block) = 0;
};

struct DecodeContext {
  CopyPolicy copy = CopyPolicy::kAuto;
  bool allow_pickle = false;  // also: whether modules may be imported for classes
  bool for_channel = false;   // a channel gave it: ends in it are opened
  bool interrupted = false;   // set by decode(): a signal handler raised, so the message is not at fault
  bool writable = true;       // views of the frame may be written, unless the array was read-only
  TensorViews tensor_views = TensorViews::kExternal;

  ViewOwners* owners = nullptr;  // not asked with CopyPolicy::kAll

  // By `reference`. A message that refers to any other is corrupt.
  std::span<const ExternalBlock> externals{};
};

// Null with a Python error set: CorruptMessage, PickleRefused, or what unpickling or unflattening raised.
PyObject* decode(std::span<const std::byte> frame, DecodeContext& context);

}  // namespace shmtree::python
