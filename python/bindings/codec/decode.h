// Decodes frames to Python objects.
//
// All calls need the GIL. Frames may come from untrusted senders: a malformed frame raises, and never crashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bindings/cpython/python_api.h"
#include "endpoint/copy_policy.h"

namespace shmtree::python {

using endpoint::CopyPolicy;

// Parses the argument `copy` of a call; null and None mean kAuto. Returns false with a Python error set.
bool parse_copy_policy(PyObject* value, CopyPolicy* policy);

inline constexpr std::uint64_t kSmallArrayBytes = 4 << 10;

// Selects which tensors on read-only memory are views and not copies. Torch has no read-only tensors, so programs could
// write to such views.
enum class TensorViews : std::uint8_t {
  kExternal,  // tensors on blocks that their sender shares through show()
  kNone,
  kAll,
};

// Memory of another block that a message refers to.
struct ExternalBlock {
  std::span<std::byte> bytes{};
  bool writable = false;
};

// Block number that stands for the frame itself.
inline constexpr std::uint32_t kOwnFrame = UINT32_MAX;

// Creates the object that is the `base` of a block's views.
class ViewOwners {
 public:
  virtual ~ViewOwners() = default;
  // Returns a new reference, or null with a Python error set. Called at most once for the frame (kOwnFrame) and for
  // each external block, before the first view of it is made.
  virtual PyObject* make(std::uint32_t block) = 0;
};

struct DecodeContext {
  CopyPolicy copy = CopyPolicy::kAuto;
  bool allow_pickle = false;  // also allows imports of modules that define classes
  // True if the frame comes from a channel. Ends in it are then opened.
  bool for_channel = false;
  bool interrupted = false;  // set by decode() if a signal handler raised: the message is not damaged
  bool writable = true;      // views of the frame are writable, unless the array was read-only
  TensorViews tensor_views = TensorViews::kExternal;

  ViewOwners* owners = nullptr;  // not used with CopyPolicy::kAll

  // Blocks by reference number. A message that refers to any other number is corrupt.
  std::span<const ExternalBlock> externals{};
};

// Returns null with a Python error set: CorruptMessage, PickleRefused, or the exception of unpickling or unflattening.
PyObject* decode(std::span<const std::byte> frame, DecodeContext& context);

}  // namespace shmtree::python
