// An object that is being put or published (endpoint/put.h).
//
// All calls need the GIL, except write().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bindings/codec/encode.h"
#include "bindings/codec/refusal.h"
#include "bindings/endpoint/end_object.h"
#include "bindings/objects/arena_arrays.h"
#include "endpoint/message_transfers.h"

namespace shmtree::python {

class OutgoingObject {
 public:
  OutgoingObject(memory::Arena& arena, Lending lending) : loans_(arena, lending) {}

  // Encodes the object for `self`. Returns false with a Python error set.
  bool encode(EndObject* self, PyObject* object, EncodeOptions options) {
    options.for_channel = true;
    options.loans = &loans_;
    options.transfers = &transfers_;
    const Encoded how = session_->encode(object, options);
    if (how == kEncoded) [[likely]]
      return true;
    if (how == kPickled) return self->pickled.fetch_add(1, std::memory_order_relaxed), true;
    if (!options.allow_pickle) explain_refused_object(*session_, self->kind->refuser(self));
    return false;
  }
  std::uint64_t bytes() noexcept { return session_->builder().total_bytes(); }
  void write(std::byte* out) noexcept { session_->builder().write(out); }
  std::span<const memory::BlockRef> blocks() const noexcept { return loans_.blocks(); }
  bool is_ours() const noexcept { return loans_.are_ours(); }
  bool gives_ends() const noexcept { return !transfers_.empty(); }
  void carry(memory::Arena& arena, memory::BlockRef block) const noexcept { transfers_.carry(arena, block); }

  // Call it after the message was put: its loans and transfers become final.
  void settle() noexcept {
    loans_.settle();
    transfers_.keep();
  }

 private:
  BorrowedSession session_{};
  LoanBook loans_;
  endpoint::MessageTransfers transfers_{};
};

}  // namespace shmtree::python
