#include "bindings/incoming.h"

#include <vector>

#include "bindings/errors.h"
#include "bindings/loan.h"
#include "features/transfer.h"

namespace shmtree::python {
namespace {

using channel::Incoming;
using memory::Arena;
using memory::BlockRef;

// Where decode() gets the owners of views from.
struct Source {
  Incoming* message;
  Arena* arena;
  std::vector<BlockRef> referred{};
};

PyObject* make_owner(void* state, std::uint32_t block) {
  auto& source = *static_cast<Source*>(state);
  if (block == kOwnFrame) {
    auto lease = source.message->adopt();
    return lease ? new_block_lease(std::move(*lease), true, 0) : raise(lease.error());
  }
  // The frame is held, and so keeps the block that it refers to until we hold that ourselves.
  GilHooks hooks;
  auto lease = source.arena->hold_existing(source.referred[block], {platform::Deadline::never(), &hooks});
  return lease ? new_block_lease(std::move(*lease), true, 0) : raise(lease.error());
}

// The ticket on a CorruptMessage that is set.
void add_ticket(std::uint64_t ticket) {
  if (!PyErr_ExceptionMatches(error_types().corrupt_message)) return;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref number(PyLong_FromUnsignedLongLong(ticket));
  if (!number || PyObject_SetAttrString(value, "ticket", number.get()) != 0) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

}  // namespace

bool parse_copy_policy(PyObject* value, CopyPolicy* policy) {
  *policy = CopyPolicy::kAuto;
  if (!value || value == Py_None) return true;
  const int copy = PyObject_IsTrue(value);
  *policy = copy ? CopyPolicy::kAll : CopyPolicy::kNone;
  return copy >= 0;
}

PyObject* decode_incoming(Endpoint* self, Incoming& message, CopyPolicy copy) {
  DecodeContext context;
  context.copy = copy;
  context.allow_pickle = self->allow_pickle && self->channel->allows_pickle();
  if (!message.in_block()) {
    context.copy = CopyPolicy::kAll;  // there is nothing to be viewed
    PyObject* object = decode(message.frame(), context);
    if (!object) add_ticket(message.ticket());
    return object;
  }
  const std::shared_ptr<channel::Channel> channel = self->channel;
  Arena& arena = *channel->arena();
  Source source{&message, &arena, arena.referred_to_by(message.block())};
  const auto blocks = features::referred_blocks(arena, source.referred);
  if (copy == CopyPolicy::kAuto && features::is_hoarding(arena, message, blocks)) context.copy = CopyPolicy::kAll;
  std::vector<ExternalBlock> externals;
  externals.reserve(blocks.size());
  for (const std::span<const std::byte> block : blocks) {
    externals.push_back({{const_cast<std::byte*>(block.data()), block.size()}, true});
  }
  context.externals = externals;
  context.make_owner = make_owner;
  context.state = &source;
  PyObject* object = decode(message.frame(), context);
  if (!object) add_ticket(message.ticket());
  return object;
}

}  // namespace shmtree::python
