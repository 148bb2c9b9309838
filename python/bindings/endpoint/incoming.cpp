#include "bindings/endpoint/incoming.h"

#include <new>
#include <vector>

#include "bindings/codec/refusal.h"
#include "bindings/cpython/errors.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/frame.h"
#include "endpoint/copy_policy.h"
#include "endpoint/frames.h"
#include "service/wire.h"

namespace shmtree::python {
namespace {

using channel::Incoming;
using memory::Arena;
using memory::BlockRef;

// Pins the blocks that contain the views of a message.
class IncomingOwners final : public ViewOwners {
 public:
  // The first view creates `*taken`. `taken` is null if the message cannot be redelivered.
  IncomingOwners(Arena& arena, Incoming& message, MayBeNacked* taken)
      : arena_(arena), message_(message), taken_(taken) {
    if (message.in_block()) referred_ = arena.blocks().referred_to_by(message.block());
  }

  const std::vector<BlockRef>& referred() const noexcept { return referred_; }
  // True if a block exists but could not be pinned, usually for lack of memory or address space.
  bool no_hold() const noexcept { return no_hold_; }

  PyObject* make(std::uint32_t block) override {
    if (block == kOwnFrame) {
      auto lease = message_.adopt();
      return lease ? new_owner(std::move(*lease)) : raise(lease.error());
    }
    // The pinned frame keeps the blocks that it refers to until we pin them ourselves.
    auto lease = arena_.hold_referred(referred_[block]);
    no_hold_ = !lease && lease.code() != Code::kNotFound;
    return lease ? new_owner(std::move(*lease)) : raise(lease.error());
  }

 private:
  PyObject* new_owner(memory::Lease block) {
    if (taken_ == nullptr) return new_received_owner(std::move(block), nullptr);
    if (*taken_ == nullptr) *taken_ = std::make_shared<std::atomic<bool>>(true);
    return new_received_owner(std::move(block), *taken_);
  }

  Arena& arena_;
  Incoming& message_;
  std::vector<BlockRef> referred_;
  MayBeNacked* taken_;
  bool no_hold_ = false;
};

PyObject* decode_message(Arena& arena, Incoming& message, IncomingOwners& owners, DecodeContext& context) {
  const auto blocks = endpoint::referred_blocks(arena, owners.referred());
  context.copy = endpoint::copy_policy(context.copy, arena, message, owners.referred(), blocks);
  std::vector<ExternalBlock> externals;
  externals.reserve(blocks.size());
  for (const std::span<const std::byte> block : blocks) {
    externals.push_back({{const_cast<std::byte*>(block.data()), block.size()}, true});
  }
  context.externals = externals;
  context.owners = &owners;
  return decode(message.frame(), context);
}

// Attaches the message to the current exception as a Frame, so that it is not lost.
void add_frame(Arena& arena, Incoming& message, bool trusted, bool known_portable) {
  Ref exception = take_exception();
  auto raw = endpoint::raw_frame(arena, message, nullptr);
  Frame* frame = raw ? new_frame(std::move(*raw)) : nullptr;
  if (frame) {
    frame->trusted = trusted;
    frame->known_portable = known_portable;
    PyObject_SetAttrString(exception.get(), "frame", Ref(reinterpret_cast<PyObject*>(frame)).get());
  }
  set_exception_again(std::move(exception));
}

// If a reply cannot be decoded, a Client fails its request. So the end keeps the number of that request.
void note_failed_reply(Endpoint* self, const Incoming& message) noexcept {
  try {
    self->failed_reply.store(service::reply_number(message.frame()).value_or(0), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // the request times out
  }
}

}  // namespace

PyObject* decode_incoming(Endpoint* self, channel::Channel& channel, Incoming& message, CopyPolicy copy,
                          bool* may_retry, MayBeNacked* taken) {
  DecodeContext context;
  context.copy = copy;
  context.allow_pickle = self->allow_pickle && channel.allows_pickle();
  context.for_channel = true;
  bool no_hold = false;
  PyObject* object = nullptr;
  try {
    IncomingOwners owners(*channel.arena(), message, taken);
    object = decode_message(*channel.arena(), message, owners, context);
    no_hold = owners.no_hold();
  } catch (const std::bad_alloc&) {
    if (!PyErr_Occurred()) PyErr_NoMemory();
  }
  if (object) [[likely]]
    return object;
  note_failed_reply(self, message);
  if (!context.allow_pickle) name_refuser(self->kind->refuser(self));
  if (PyErr_ExceptionMatches(error_types().corrupt_message)) add_to_exception("ticket", message.ticket());
  if (PyErr_ExceptionMatches(error_types().incompatible_message)) {
    add_frame(*channel.arena(), message, context.allow_pickle, channel.was_always_portable());
  }
  // A signal handler or the message itself may have raised SystemExit or the like. The message is nacked, a limited
  // number of times.
  const bool is_interrupted = context.interrupted || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
  const bool has_no_memory = no_hold || PyErr_ExceptionMatches(PyExc_MemoryError);
  const bool is_counted = !is_interrupted && (has_no_memory || !PyErr_ExceptionMatches(PyExc_Exception));
  if (is_counted) message.set_not_built();
  *may_retry = is_interrupted || is_counted;
  return nullptr;
}

channel::Channel* begin_receiving(Endpoint* self) {
  return raise_deferred(self) ? nullptr : open_channel(self, channel::End::kReceiving);
}

void defer_error(Endpoint* self, const Error& error) {
  if (error.code == Code::kPeerDied) raise(error), defer_exception(self);
}

void defer_failed_build(Endpoint* self, bool may_retry) {
  if (may_retry && PyErr_ExceptionMatches(PyExc_MemoryError)) {
    PyErr_Clear();
  } else {
    defer_exception(self);
  }
}

}  // namespace shmtree::python
