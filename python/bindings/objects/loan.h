// Blocks of an arena as the memory of arrays, and the giving of such arrays to others without a copy.
//
// An array of new_empty() is given away when it is put whole: it and the arrays it is a view of become read-only here.
// A part of one is copied, since what is left of the block stays the sender's; unless the caller moves it, and then
// answers for it. An array that its owner made read-only before is not given but shown: any number of times; so is what
// show() was called for, by whatever view, since torch has no read-only tensors. What came out of a channel goes on by
// reference when it is moved. Each byte of a block is given once: a second time it is copied, also by a put that begins
// while the first still waits for room.
// What was taken and may yet be delivered again is copied.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "bindings/objects/lease.h"
#include "endpoint/loan.h"
#include "memory/arena.h"
#include "platform/waiting.h"

namespace shmtree::python {

// Whether a message may yet be delivered again: one that was taken and is not acknowledged. Null for all others.
using MayGoBack = std::shared_ptr<std::atomic<bool>>;

struct HeldBlock {
  memory::Lease block;
  bool received = false;        // came out of a channel
  bool shared = false;          // several processes write it: it is copied like any other memory
  std::size_t array_bytes = 0;  // of the one array on it, for what new_empty() made
  bool gift = false;            // made to be put: a queue, which copies what it is not told to move, gives it away too
  bool shown = false;           // see show()
  endpoint::Claims claims{};
  MayGoBack may_go_back{};              // and then its memory is not this process's to give away
  const std::byte* known_at = nullptr;  // where find_lease() knows it by

  ~HeldBlock();
};

// The Lease object of a block. Null with a Python error set.
PyObject* new_block_lease(memory::Lease block, bool received, std::size_t array_bytes, bool shared = false);
// The same for what came out of a channel.
PyObject* new_received_lease(memory::Lease block, MayGoBack may_go_back);

// Called with (uuid, address, bytes that have pages) for every block that is taken hold of in an arena which this
// process pinned. A Python callable or null; kept for good.
void set_pin_callback(PyObject* callback);

// What holds a lease's memory, null when that is no block of an arena.
HeldBlock* held_block(const Lease& lease) noexcept;

// The lease of new_empty() whose memory has this address in it, or null. For memory that tensors have.
Lease* find_lease(const void* address) noexcept;

struct ArrayRequest {
  PyObject* shape;         // an int or a sequence of them
  PyObject* dtype;         // anything that NumPy takes for one
  std::string_view order;  // "C" or "F"
  bool zeroed;
  bool gift;  // see HeldBlock
};

// Makes an array in the arena. Waits for memory with `hooks`. Null with a Python error set; TypeError for a dtype that
// contains objects.
PyObject* new_array(const std::shared_ptr<memory::Arena>& arena, const ArrayRequest& request,
                    platform::WaitHooks& hooks);

// From now on the block of an array that was made here, with all views of it, is never given away: it is shown to
// whoever it is sent to. Whoever writes it from now on is seen by them. False when the array is in no such block.
bool show(PyArrayObject* array);

// A new one that several processes share: zeros, with versions. Null with a Python error set.
PyObject* new_shared_array(const std::shared_ptr<memory::Arena>& arena, PyObject* shape, PyObject* dtype,
                           platform::WaitHooks& hooks);

// That array on its block, in a process that has got it. Null with a Python error set; ValueError when the block is too
// small for it.
PyObject* array_on(memory::Lease block, PyObject* shape, PyObject* dtype, std::string_view order);

using endpoint::Lending;

// Where an array that is sent by reference lies.
struct Loan {
  std::uint32_t reference = 0;  // which of the blocks that the message refers to
  std::uint64_t offset = 0;     // of the first byte asked about, in that block
  bool shown = false;           // others have it, too
};

// The loans of one message.
class LoanBook {
 public:
  LoanBook(memory::Arena& arena, Lending lending) noexcept : arena_(arena), lending_(lending) {}
  ~LoanBook();

  // Whether [data, data + size_bytes), the memory that the array's elements lie in, goes by reference; else it is to be
  // copied. `array` is null for a tensor, whose memory only its address tells. Runs no Python code. The message may
  // still fail: what follows from a loan is for settle().
  bool resolve(PyArrayObject* array, const void* data, std::size_t size_bytes, Loan* out);
  // The uuid of the arena that the message is going to lie in. Not the arena: code of the user's may have it when
  // another thread forks, and a child would keep it for good. Null with a Python error set.
  Ref home() const;
  // The message is encoded from its beginning again: none of the loans so far is in it.
  void start_over();

  std::span<const memory::BlockRef> blocks() const noexcept { return blocks_; }
  // Whether they are this process's to give: not in a child that was forked since.
  bool are_ours() const noexcept;
  // The message was put: what was given away is only read here from now on.
  void settle() noexcept;

 private:
  struct Lent {
    PyObject* array;
    Lease* lease;
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
