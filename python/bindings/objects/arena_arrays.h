// Arrays in blocks of an arena, and how such arrays are sent without a copy.
//
// put() gives away an array of new_empty() if it is sent whole: the array and its bases become read-only here. A part
// of an array is copied, since the sender keeps the rest of the block. With move=, the caller gives the part away and
// guarantees that nothing else uses it.
//
// An array that its owner made read-only before is shown, not given away: it is sent by reference any number of times.
// So is an array for which show() was called, through any of its views. (Torch needs show(), since it has no read-only
// tensors.) A received array is forwarded by reference if it is moved. A received array that may still be redelivered
// is copied.
//
// Each byte of a block is given away once. A second put copies it, even while the first put still waits for space.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "bindings/objects/view_owner.h"
#include "endpoint/loan.h"
#include "memory/arena.h"
#include "platform/waiting.h"

namespace shmtree::python {

// True if the message may still be redelivered: it was taken and is unacked. Null for every other message.
using MayBeNacked = std::shared_ptr<std::atomic<bool>>;

struct HeldBlock {
  memory::Lease block;
  bool received = false;        // came from a channel
  bool shared = false;          // several processes write it, so put() copies it like ordinary memory
  std::size_t array_bytes = 0;  // bytes of the one array in the block, if new_empty() made it
  // True if the array was made to be put. Even a queue, which copies arrays unless move=True, gives such an array away.
  bool gift = false;
  bool shown = false;  // see show()
  endpoint::Claims claims{};
  MayBeNacked may_be_nacked{};          // if true, this process may not give the memory away
  const std::byte* known_at = nullptr;  // key of the block in the table of find_view_owner()

  ~HeldBlock();
};

// Makes the ViewOwner of a block. Returns null with a Python error set.
PyObject* new_block_owner(memory::Lease block, bool received, std::size_t array_bytes, bool shared = false);
// Does the same for a block that came from a channel.
PyObject* new_received_owner(memory::Lease block, MayBeNacked may_be_nacked);

// Sets the callback for pinned arenas: a Python callable (or null), which is kept forever. It is called with (uuid,
// address, bytes that have pages) for every block that the process starts to use in an arena that it has pinned in RAM.
void set_pin_callback(PyObject* callback);

// Returns the block that a ViewOwner keeps alive, or null if its memory is not a block of an arena.
HeldBlock* held_block(const ViewOwner& owner) noexcept;

// Returns the owner of new_empty() for the memory that contains the address, or null. For tensors, which have only an
// address.
ViewOwner* find_view_owner(const void* address) noexcept;

struct ArrayRequest {
  PyObject* shape;         // an int or a sequence of ints
  PyObject* dtype;         // anything that NumPy converts to a dtype
  std::string_view order;  // "C" or "F"
  bool zeroed;
  bool gift;  // see HeldBlock
};

// Makes an array in the arena. Waits for memory with `hooks`. Returns null with a Python error set: TypeError for a
// dtype that contains objects.
PyObject* new_array(const std::shared_ptr<memory::Arena>& arena, const ArrayRequest& request,
                    platform::WaitHooks& hooks);

// Marks the block of an array that was made here, with all its views, as shown: put() sends a reference and never gives
// it away. Receivers see later writes. Returns false if the array is in no such block.
bool show(PyArrayObject* array);

// Makes a zeroed array that several processes share, with versions. Returns null with a Python error set.
PyObject* new_shared_array(const std::shared_ptr<memory::Arena>& arena, PyObject* shape, PyObject* dtype,
                           platform::WaitHooks& hooks);

// Makes the view of such an array in a process that has received its block. Returns null with a Python error set:
// ValueError if the block is too small.
PyObject* array_on(memory::Lease block, PyObject* shape, PyObject* dtype, std::string_view order);

using endpoint::Lending;

// Location of an array that is sent by reference.
struct Loan {
  std::uint32_t reference = 0;  // index of the block among those that the message refers to
  std::uint64_t offset = 0;     // of the array's first byte in that block
  bool shown = false;           // true: the array is not given away, since other processes have it, too
};

// The loans of one message.
class LoanBook {
 public:
  LoanBook(memory::Arena& arena, Lending lending) noexcept : arena_(arena), lending_(lending) {}
  ~LoanBook();

  // Decides if [data, data + size_bytes), the memory of the array's elements, goes by reference (true) or must be
  // copied. `array` is null for a tensor, of which only the address is known. Runs no Python code. The message may
  // still fail: settle() applies the consequences of a loan.
  bool resolve(PyArrayObject* array, const void* data, std::size_t size_bytes, Loan* out);
  // Returns the uuid of the arena in which the message will be stored, or null with a Python error set. It returns no
  // Arena: if another thread forked while user code had a reference to it, the child would keep it forever.
  Ref home() const;
  // Forgets all loans, because the message is encoded again from its beginning.
  void start_over();

  std::span<const memory::BlockRef> blocks() const noexcept { return blocks_; }
  // True if this process may give the loans away. False in a child that was forked after they were lent.
  bool are_ours() const noexcept;
  // Call it after the message was put: from now on, this process only reads the memory that it gave away.
  void settle() noexcept;

 private:
  struct Lent {
    PyObject* array;
    ViewOwner* owner;
    bool given;
    bool whole;
  };
  std::uint32_t reference_to(memory::BlockRef block);

  memory::Arena& arena_;
  Lending lending_;
  std::vector<memory::BlockRef> blocks_;
  std::vector<Lent> lent_;
};

}  // namespace shmtree::python
