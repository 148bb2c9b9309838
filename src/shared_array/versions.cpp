#include "shared_array/versions.h"

#include <new>
#include <string>
#include <utility>

#include "memory/deaths.h"
#include "memory/event.h"
#include "platform/atomics.h"
#include "platform/copy.h"
#include "platform/errors.h"
#include "platform/machine.h"
#include "platform/other_process.h"
#include "platform/wait_policy.h"

namespace shmtree::shared_array {

using namespace memory;
using namespace platform;
using namespace platform::wait_policy;

namespace {

constexpr int kOvertakenOften = 2;
constexpr const char* kArray = "a shared array";

constexpr bool is_odd(std::uint64_t sequence) noexcept {
  return sequence % 2 != 0;
}

Error interrupted() {
  return Error{Code::kInterrupted, "interrupted while waiting for a shared array"};
}

}  // namespace

void Versions::init(std::byte* block, std::uint64_t data_bytes) noexcept {
  auto* shared = new (block + round_up(data_bytes, alignof(Versioned))) Versioned{};
  shared->magic = kVersionedMagic;
}

Result<Versions> Versions::of(const Lease& block, std::uint64_t data_bytes) {
  if (block_bytes(data_bytes) <= block.bytes()) {
    auto* shared = reinterpret_cast<Versioned*>(block.data() + round_up(data_bytes, alignof(Versioned)));
    if (load_once(shared->magic) == kVersionedMagic) {
      return Versions(*block.arena(), block.data(), data_bytes, shared);
    }
  }
  return Error{Code::kInvalid, "this shared array has no versions: it was made by an older release"};
}

// --- The words of the writer and the reader

bool Versions::is_alive(std::uint32_t word) const noexcept {
  return (word & kHeld) != 0 && arena_->participants().is_alive(word & ~(kHeld | kContended));
}

bool Versions::take(std::atomic<std::uint32_t>& word, Identity me) const noexcept {
  std::uint32_t seen = load_acquire(word);
  return (seen == 0 || !is_alive(seen)) && compare_swap(word, seen, kHeld | me);
}

void Versions::unlock(std::atomic<std::uint32_t>& word) const noexcept {
  exchange_seq_cst(word, 0u);
  notify_all(shared_->changed);
}

bool Versions::is_torn_at(std::uint64_t sequence) const noexcept {
  return is_odd(sequence) && !is_alive(load_acquire(shared_->writer)) && load_acquire(shared_->sequence) == sequence;
}

bool Versions::is_torn() const noexcept {
  return is_torn_at(load_acquire(shared_->sequence));
}

Error Versions::torn(int writer_pid) {
  Error error{Code::kPeerDied,
              "this shared array is torn until write(whole=True) has replaced all of it; a process died in its write, "
              "or an exception left it:"};
  memory::append_killed(error, writer_pid);
  return error;
}

Error Versions::timed_out(const char* what) const {
  std::string text("timed out: ");
  const std::uint32_t writer = load_acquire(shared_->writer);
  if (!is_alive(writer)) {
    text += what;
  } else {
    const int pid = load_relaxed(shared_->writer_pid);
    text += "process ";
    text += std::to_string(pid);
    text += is_stopped(pid) ? ", which is stopped, is writing this shared array" : " is writing this shared array";
  }
  return Error{Code::kTimeout, std::move(text)};
}

// --- Writing

Status Versions::begin_write(const WaitContext& wait, Extent extent) const {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  EventWait waiting(shared_->changed, {arena_->participants(), WaitFor::kArray}, wait);
  std::int64_t yielded_ns = 0;
  // Waits until an overtaken reader has made its copy, for at most kReaderGraceNs, and only if the reader is not
  // stopped.
  const auto yields = [&] {
    const std::uint32_t reader = load_acquire(shared_->reader);
    if (reader == 0 || !is_alive(reader)) return false;
    const std::int64_t now = monotonic_ns();
    if (yielded_ns == 0) yielded_ns = now;
    const Participant& slot = arena_->participants().slot_of_identity(reader & ~(kHeld | kContended));
    return now - yielded_ns < kReaderGraceNs && !is_stopped(load_relaxed(slot.pid));
  };
  auto came = wait_until(
      waiting, wait, kArray, [&] { return !yields() && take(shared_->writer, *me); }, do_nothing);
  if (!came) return std::move(came).error();
  if (!*came && !take(shared_->writer, *me)) return timed_out("other processes kept writing this shared array");
  if (extent == Extent::kPart && is_odd(load_relaxed(shared_->sequence))) {
    const int torn_by = load_relaxed(shared_->writer_pid);
    unlock(shared_->writer);
    return torn(torn_by);
  }
  store_relaxed(shared_->writer_pid, process_id());
  // Release: a reader that sees the odd sequence also sees the writer's word. Otherwise it would report the data as
  // torn.
  store_release(shared_->sequence, load_relaxed(shared_->sequence) | 1);
  fence_seq_cst();  // the odd sequence is seen before any of the data
  return success();
}

Status Versions::end_write(bool whole) const noexcept {
  const Identity me = arena_->current_identity();
  if (me == kNoIdentity || load_relaxed(shared_->writer) != (kHeld | me)) {
    return Error{Code::kInvalid, "this write was begun by another process (the parent of this one)"};
  }
  if (whole) {
    fence_seq_cst();  // makes the data visible before the even sequence, even if non-temporal stores wrote them
    store_release(shared_->sequence, (load_relaxed(shared_->sequence) | 1) + 1);
  }
  unlock(shared_->writer);
  return success();
}

// --- Reading

namespace {

// Owns the word `reader` for an overtaken reader, from its construction until the copy is done.
class Asking {
 public:
  Asking() = default;
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    if (word_ == nullptr) return;
    std::uint32_t mine = mine_;
    compare_swap(*word_, mine, 0u);
    notify_all(*event_);
  }
  bool began() const noexcept { return word_ != nullptr; }
  void begin(std::atomic<std::uint32_t>& word, Identity me, Event& event) noexcept {
    word_ = &word;
    mine_ = kHeld | me;
    event_ = &event;
  }

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
  std::uint32_t mine_ = 0;
  Event* event_ = nullptr;
};

}  // namespace

Result<std::uint64_t> Versions::read(std::byte* out, const WaitContext& wait) const {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  EventWait waiting(shared_->changed, {arena_->participants(), WaitFor::kArray}, wait);
  Asking asking;
  int overtaken = 0;
  const auto was_overtaken = [&] {
    if (++overtaken >= kOvertakenOften && !asking.began() && take(shared_->reader, *me)) {
      asking.begin(shared_->reader, *me, shared_->changed);
    }
  };
  for (;;) {
    const std::uint64_t before = load_acquire(shared_->sequence);
    if (is_odd(before)) {
      was_overtaken();  // consecutive writes count as well, if each one began before this check
      const auto before_sleep = [&](bool first) -> Result<bool> {
        if (is_torn_at(before)) return torn(load_relaxed(shared_->writer_pid));
        if (!first) was_overtaken();
        return false;
      };
      auto came = wait_until(
          waiting, wait, kArray, [&] { return load_acquire(shared_->sequence) != before; }, before_sleep);
      if (!came) return std::move(came).error();
      if (!*came) return timed_out("other processes kept writing this shared array");
      continue;
    }
    {
      const BlockingScope released(bytes_ > kLongCopyBytes ? wait.hooks : nullptr);
      copy_racing(out, data_, bytes_);
    }
    fence_acquire();  // the copy is made before the sequence is read again
    if (load_relaxed(shared_->sequence) == before) return before / 2;
    if (wait.interrupted()) return interrupted();
    if (wait.deadline.passed()) return timed_out("other processes kept writing this shared array");
    was_overtaken();
  }
}

Result<std::uint64_t> Versions::wait_for_newer(std::uint64_t known, const WaitContext& wait) const {
  EventWait waiting(shared_->changed, {arena_->participants(), WaitFor::kNewer}, wait);
  auto came = wait_until(
      waiting, wait, kArray, [&] { return version() > known; }, do_nothing);
  if (!came) return std::move(came).error();
  if (!*came) return timed_out("no process wrote this shared array");
  return version();
}

}  // namespace shmtree::shared_array
