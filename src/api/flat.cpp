// Messages that consist of bytes only: loans, put_bytes(), get_bytes() and related calls.
#include "shmtree/flat.h"

#include <bit>
#include <cstring>
#include <utility>

#include "api/flat.h"
#include "api/message.h"
#include "api/receiving.h"
#include "api/taken.h"
#include "endpoint/copy_policy.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"
#include "format/flat.h"

namespace shmtree {

using api::ChannelState;
using channel::Incoming;
using platform::WaitContext;
using ByteRun = std::span<const std::byte>;

namespace detail {

void EndLoan::operator()(LoanedBlock* block) const noexcept {
  delete block;
}

Error other_size(std::size_t found, std::size_t wanted) {
  return Error{.code = Code::kInvalid,
               .message = "The message has " + std::to_string(found) + " bytes, but the requested struct has " +
                          std::to_string(wanted) + "."};
}

FlatItem flat_copy(ByteRun bytes) {
  auto copy = value::aligned_copy(bytes);
  const ByteRun copied(copy.get(), bytes.size());
  return FlatAccess::make(std::move(copy), nullptr, copied);
}

bool is_aligned(ByteRun bytes) noexcept {
  return std::bit_cast<std::uintptr_t>(bytes.data()) % format::kBufferAlignment == 0;
}

Result<ByteRun> bytes_in(const Item& item) {
  if (item.kind() == Kind::kBytes || item.kind() == Kind::kLongBytes || item.kind() == Kind::kByteArray ||
      item.kind() == Kind::kLongByteArray) {
    return item.try_as<ByteRun>();
  }
  const auto array = item.try_view();
  if (array && array->dtype == DType::kUInt8 && array->c_order) return ByteRun(array->data, array->elements);
  if (!array && array.code() == Code::kOutOfSharedMemory) return array.error();
  return item.mismatch("bytes");
}

Result<Lent> lend(const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind, std::size_t bytes,
                  const WaitContext& wait) {
  if (bytes == 0) return Error{Code::kInvalid, "the size of a loan is 0 bytes; it must be at least 1"};
  if (bytes > format::kMaxFlatBytes) {
    return Error{Code::kMessageTooLarge, "a loan of " + std::to_string(bytes) + " bytes is over the limit of 256 TiB"};
  }
  LoanPointer lent(new LoanedBlock{.arena = arena, .kind = kind});
  lent->frame_bytes = format::flat_long_bytes(bytes);
  auto block = arena->allocate(lent->frame_bytes, kind, wait);
  if (!block) return std::move(block).error();
  std::byte* begin = block->data();
  format::write_flat_prefix(begin, bytes);
  lent->writer = block->writer();
  lent->block = std::move(*block);
  return Lent(std::move(lent), begin + format::kFlatBuffer);
}

Status check_loan(const LoanedBlock* lent, const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind) {
  if (lent == nullptr || (!lent->block.valid() && !lent->held.valid()))
    return Error{Code::kInvalid, "this loan is empty: it was put or moved from"};
  if (lent->writer != lent->arena->current_identity())
    return Error{Code::kInvalid, "this loan belongs to the process that forked this one"};
  if (lent->arena != arena) return Error{Code::kInvalid, "this loan is in another arena than the channel"};
  if (lent->kind == kind) return success();
  return Error{Code::kInvalid, kind == memory::BlockKind::kPublished
                                   ? "this loan was made by a Sender, and a Broadcast cannot put it"
                                   : "this loan was made by a Broadcast, and a Sender cannot put it"};
}

}  // namespace detail

// --- sending ---------------------------------------------------------------------------------------------------------

Result<std::uint64_t> Sender::put_bytes(ByteRun bytes, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) -> Result<std::uint64_t> {
    channel::Channel& channel = state_->channel();
    const auto frame = endpoint::FlatFrame::make(bytes, channel.inline_bytes());
    if (!frame) return frame.error();
    return state_->or_closed(endpoint::put(channel, *frame, wait));
  });
}

namespace {

// Puts run_at(i) for each i below `count`.
template <class RunAt>
Status put_runs(ChannelState& state, const Timeout& timeout, const std::stop_token& stop, std::size_t count,
                const RunAt& run_at) {
  return api::put_batch(state, timeout, stop, [&](endpoint::Batch& batch) -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      const auto frame = endpoint::FlatFrame::make(run_at(i), state.channel().inline_bytes());
      if (!frame) return frame.error();
      Status added = batch.add(*frame, false);
      if (!added) return added;
    }
    return success();
  });
}

}  // namespace

Status Sender::put_many_bytes(std::span<const ByteRun> runs, Timeout timeout, const std::stop_token& stop) const {
  return shmtree::put_runs(*state_, timeout, stop, runs.size(), [&](std::size_t i) { return runs[i]; });
}
Status Sender::put_runs(ByteRun runs, std::size_t each, Timeout timeout, const std::stop_token& stop) const {
  const auto run_at = [&](std::size_t i) { return runs.subspan(i * each, each); };
  return shmtree::put_runs(*state_, timeout, stop, runs.size() / each, run_at);
}

Result<detail::Lent> Sender::lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) {
    return state_->or_closed(detail::lend(state_->channel().arena(), memory::BlockKind::kMessage, bytes, wait));
  });
}

Result<std::uint64_t> Sender::put_lent(detail::LoanedBlock* lent, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) -> Result<std::uint64_t> {
    Status usable = detail::check_loan(lent, state_->channel().arena(), memory::BlockKind::kMessage);
    if (!usable) return std::move(usable).error();
    channel::Outgoing outgoing{.block = std::move(lent->block), .bytes = lent->frame_bytes};
    auto ticket = state_->channel().sending().put(outgoing, wait);
    if (!ticket) lent->block = std::move(outgoing.block);
    return state_->or_closed(std::move(ticket));
  });
}

Result<std::uint64_t> Sender::put_flat(const FlatItem& item, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) -> Result<std::uint64_t> {
    if (!detail::FlatAccess::has_message(item))
      return Error{Code::kInvalid, "this FlatItem is empty: it was put or moved from"};
    format::FrameBuilder builder;
    const value::Origin origin = detail::FlatAccess::origin(item);
    api::Message message(builder, *state_, origin);
    Status encoded = message.encode(Value(item.bytes()));
    if (!encoded) return std::move(encoded).error();
    return state_->or_closed(endpoint::put(state_->channel(), message, wait));
  });
}

// --- receiving -------------------------------------------------------------------------------------------------------

namespace {

Error no_bytes(const Incoming& message, std::string reason) {
  return Error{.code = Code::kInvalid,
               .message = "message " + std::to_string(message.ticket()) + ": " + std::move(reason),
               .ticket = message.ticket()};
}

// The codec with which endpoint::receive() turns a message of bytes into a `Made`. Calls `make(arena, message, bytes,
// item)`; `item` is the Item that contains the bytes, or null for a flat frame.
template <class Made, class Make>
class FlatCodec {
 public:
  using Object = Result<Made>;
  FlatCodec(ChannelState& state, Make make) : state_(state), make_(std::move(make)) {}
  ChannelState& state() const noexcept { return state_; }

  Object decode(channel::Channel& channel, Incoming& message, bool* may_retry) {
    Object object = or_out_of_memory([&] { return of(*channel.arena(), message); });
    *may_retry = !object && api::may_retry_after(object.error(), message);
    return object;
  }
  Object failed(Error error) { return state_.or_closed(std::move(error)); }

 private:
  Object of(memory::Arena& arena, Incoming& message) {
    if (const auto run = format::flat_run(message.frame())) return make_(arena, message, *run, nullptr);
    Result<Item> item = api::to_item(arena, message);
    if (!item) return std::move(item).error();
    const Result<ByteRun> bytes = detail::bytes_in(*item);
    if (!bytes && bytes.code() == Code::kOutOfSharedMemory) return bytes.error();
    if (!bytes) return no_bytes(message, bytes.error().message);
    return make_(arena, message, *bytes, &*item);
  }
  ChannelState& state_;
  Make make_;
};

template <class Made, class Make>
Result<Made> receive(ChannelState& state, const Timeout& timeout, const std::stop_token& stop, Make make) {
  return api::receiving(state, timeout, stop, [&](const WaitContext& wait) {
    FlatCodec<Made, Make> codec(state, make);
    const api::Spare spare;
    return endpoint::receive(codec, state.channel(), *spare, wait);
  });
}

Result<FlatItem> to_flat(memory::Arena& arena, Incoming& message, ByteRun run, const Item* item) {
  const auto policy = endpoint::copy_policy(endpoint::CopyPolicy::kAuto, arena, message, {}, {});
  if (!detail::is_aligned(run) || endpoint::is_copied(policy, run.size(), false)) {
    return detail::flat_copy(run);
  }
  if (item != nullptr) {
    const auto& tree = value::Tree::of(*item);
    const bool others_see_it = item->is_array() && item->view().read_only;
    return detail::FlatAccess::make(tree, others_see_it ? nullptr : tree->home, run);
  }
  auto lease = message.adopt();
  if (!lease) return std::move(lease).error();
  auto received = std::make_shared<api::Received>(std::move(*lease));
  const void* home = received.get();
  return detail::FlatAccess::make(std::move(received), home, run);
}

}  // namespace

template class Taken<FlatItem>;

Result<FlatItem> Receiver::get_bytes(Timeout timeout, const std::stop_token& stop) const {
  return receive<FlatItem>(*state_, timeout, stop, to_flat);
}

Result<TakenBytes> Receiver::take_bytes(Timeout timeout, const std::stop_token& stop) const {
  return api::receiving(*state_, timeout, stop, [&](const WaitContext& wait) {
    FlatCodec<FlatItem, decltype(&to_flat)> codec(*state_, to_flat);
    return detail::TakenAccess::take<FlatItem>(codec, *state_, wait);
  });
}

Result<std::vector<FlatItem>> Receiver::get_many_bytes(std::size_t most, Timeout timeout,
                                                       const std::stop_token& stop) const {
  return api::receiving(*state_, timeout, stop, [&](const WaitContext& wait) {
    api::Many<FlatItem, FlatCodec<FlatItem, decltype(&to_flat)>> items(most, *state_, to_flat);
    return items.receive("get_many_bytes", wait);
  });
}

namespace {

// Copies each message into the next struct of the caller.
auto copy_to(std::span<std::byte> out) {
  return [out](memory::Arena&, Incoming& message, ByteRun run, const Item*) -> Status {
    if (run.size() != out.size()) return no_bytes(message, detail::other_size(run.size(), out.size()).message);
    std::memcpy(out.data(), run.data(), out.size());
    return success();
  };
}

}  // namespace

Status Receiver::get_into(std::span<std::byte> out, Timeout timeout, const std::stop_token& stop) const {
  return receive<Unit>(*state_, timeout, stop, copy_to(out));
}

Result<std::size_t> Receiver::get_runs(std::span<std::byte> out, std::size_t each, Timeout timeout,
                                       const std::stop_token& stop) const {
  if (out.empty()) return Error{Code::kInvalid, "get_structs() into 0 structs; pass at least 1"};
  return api::receiving(*state_, timeout, stop, [&](const WaitContext& wait) -> Result<std::size_t> {
    FlatCodec<Unit, decltype(copy_to(out))> codec(*state_, copy_to(out.first(each)));
    const api::Spare spare;
    Status first = endpoint::receive(codec, state_->channel(), *spare, wait);
    if (!first) return std::move(first).error();
    std::span<std::byte> rest = out.subspan(each);
    const auto copy = [&](ByteRun frame) noexcept {
      const auto run = format::flat_run(frame);
      if (!run || run->size() != each) return false;
      std::memcpy(rest.data(), run->data(), each);
      rest = rest.subspan(each);
      return true;
    };
    return 1 + state_->channel().receiving().receive_run(rest.size() / each, copy);
  });
}

}  // namespace shmtree
