// Implements Arena and the arrays allocated in it.
#include <algorithm>
#include <optional>
#include <utility>

#include "api/state.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/weak_registry.h"

namespace shmtree {

using platform::WaitContext;

namespace api {

namespace {

platform::WeakRegistry<ArenaState>& states() noexcept {
  return platform::never_destroyed<platform::WeakRegistry<ArenaState>>();
}

}  // namespace

ArenaState::~ArenaState() {
  states().erase(this);
}

std::shared_ptr<ArenaState> ArenaState::for_arena(const std::shared_ptr<memory::Arena>& arena) {
  const auto is_it = [&](const ArenaState& state) { return state.arena == arena; };
  if (auto existing = states().find(is_it)) return existing;
  return states().insert(std::make_shared<ArenaState>(arena), is_it);
}

Result<NewArray> ArenaState::new_array(DType dtype, std::vector<std::int64_t> shape, const WaitContext& wait) {
  std::uint64_t bytes = item_bytes(dtype);
  if (bytes == 0) return Error{Code::kInvalid, "an array in an arena needs elements of a fixed size"};
  if (shape.size() > kMaxDims) {
    return Error{Code::kInvalid, "an array has " + std::to_string(shape.size()) + " dimensions; it must have at most " +
                                     std::to_string(kMaxDims)};
  }
  for (const std::int64_t count : shape) {
    if (count < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(count), &bytes)) {
      return Error{Code::kInvalid, "a dimension is " + std::to_string(count) +
                                       "; it must not be negative, and all elements must have " +
                                       "less than 2**64 bytes"};
    }
  }
  auto block = arena->allocate(std::max<std::uint64_t>(bytes, 1), memory::BlockKind::kArray, wait);
  if (!block) return std::move(block).error();
  auto lease = arena->hold_new(std::move(*block));
  if (!lease) return std::move(lease).error();
  auto loan = std::make_shared<Loan>();
  loan->lease = std::move(*lease);
  loan->bytes = bytes;
  std::vector<std::weak_ptr<Loan>> gone;  // Freed outside the mutex.
  {
    const std::lock_guard guard(mutex);
    for (auto it = loans.begin(); it != loans.end();) {
      if (!it->second.expired()) {
        ++it;
        continue;
      }
      gone.push_back(std::move(it->second));
      it = loans.erase(it);
    }
    loans[loan->lease.data()] = loan;
  }
  NewArray array{{.data = loan->lease.data(), .dtype = dtype, .shape = std::move(shape)}};
  array.owner = std::shared_ptr<const void>(loan, loan.get());
  return array;
}

std::shared_ptr<Loan> ArenaState::loan_at(const std::byte* begin, std::uint64_t bytes) {
  std::shared_ptr<Loan> found;  // Released outside the mutex.
  const std::lock_guard guard(mutex);
  const auto at = loans.find(begin);
  if (at != loans.end()) found = at->second.lock();
  return found != nullptr && bytes == found->bytes ? found : nullptr;
}

bool ArenaState::lend(Loan& loan, const void* message) {
  const endpoint::ByteRange all{0, loan.bytes};
  if (loan.lease.is_inherited()) return false;
  const std::lock_guard guard(mutex);
  if (!loan.claims.are_ours() || !loan.claims.are_free(all, message, true)) return false;
  loan.claims.promise(all, message, true);
  return true;
}

}  // namespace api

Result<Arena> Arena::create(const ArenaOptions& options) {
  return or_out_of_memory([&]() -> Result<Arena> {
    auto arena = memory::Arena::create({options.max_bytes, options.prefault, options.huge_pages});
    if (!arena) return std::move(arena).error();
    Status set = options.spin ? (*arena)->spin().set_ns(options.spin->count()) : success();
    if (!set) return std::move(set).error();
    return api::ArenaState::wrap(*arena);
  });
}

namespace {

struct SharedArena {
  platform::ForkSafeMutex mutex;
  std::optional<Arena> kept;
  std::uint64_t owner = 0;
};

}  // namespace

Result<Arena> Arena::shared() try {
  auto& [mutex, kept, owner] = platform::never_destroyed<SharedArena>();
  const auto pid = static_cast<std::uint64_t>(platform::process_id());
  {
    const std::lock_guard guard(mutex);
    if (kept.has_value() && owner == pid) return *kept;
  }
  auto created = create();  // A forked child makes a default arena of its own.
  if (!created) return created;
  // Released outside `mutex`. Otherwise its destructor would lock other mutexes while `mutex` is held.
  std::optional<Arena> inherited;
  const std::lock_guard guard(mutex);
  if (!kept.has_value() || owner != pid) {
    inherited = std::exchange(kept, std::move(*created));
    owner = pid;
  }
  return *kept;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<NewArray> Arena::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return or_out_of_memory([&]() -> Result<NewArray> {
    if (state_ == nullptr) return api::no_arena();
    return state_->new_array(dtype, std::move(shape), waiting(timeout));
  });
}
Result<NewArray> Arena::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                  const std::stop_token& stop) const {
  return or_out_of_memory([&]() -> Result<NewArray> {
    if (state_ == nullptr) return api::no_arena();
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    endpoint::OrStopped<endpoint::UntilDone> until(stop, nullptr);
    return state_->new_array(dtype, std::move(shape), waiting(timeout, &until));
  });
}

ArenaUsage Arena::usage() const {
  if (state_ == nullptr) return {};
  memory::poll_for_deaths(*state_->arena, 0);
  const memory::ArenaStats stats = state_->arena->inspector().stats();
  return {stats.max_bytes, stats.committed_bytes, stats.used_bytes, stats.held_bytes};
}

std::uint64_t Arena::trim() const {
  return state_ == nullptr ? 0 : state_->arena->allocator().trim();
}

}  // namespace shmtree
