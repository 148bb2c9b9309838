#include "platform/event_relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "platform/machine.h"

namespace shmtree::platform {
namespace {

// Requests that one context has space for. The system counts them for all processes (fs.aio-max-nr, 65,536).
constexpr long kRequestsOfContext = 128;
constexpr std::size_t kMaxContexts = 64;

// The contexts of this process, in the order in which they were made, then zeros. They are never destroyed, which would
// block for milliseconds.
constinit std::array<std::atomic<aio_context_t>, kMaxContexts> g_contexts{};
constinit std::atomic<int> g_owner{0};

// A forked child has none of its parent's contexts. Its first threads that come here at once may make one in vain.
void forget_contexts_of_parent() noexcept {
  if (g_owner.load(std::memory_order_acquire) == process_id()) return;
  for (std::atomic<aio_context_t>& context : g_contexts) context.store(0);
  g_owner.store(process_id(), std::memory_order_release);
}

// Returns 0 with errno set if the system refuses one.
aio_context_t context_at(std::size_t index) noexcept {
  aio_context_t context = g_contexts[index].load(std::memory_order_acquire), created = 0;
  if (context != 0 || syscall(SYS_io_setup, kRequestsOfContext, &created) != 0) return context;
  if (g_contexts[index].compare_exchange_strong(context, created, std::memory_order_acq_rel)) return created;
  syscall(SYS_io_destroy, created);  // another thread was faster
  return context;
}

// A completed request occupies its place until its event is taken. Its eventfd has the same information.
void discard_events(aio_context_t context) noexcept {
  std::array<io_event, 32> events;
  timespec at_once{};
  while (syscall(SYS_io_getevents, context, 0L, events.size(), events.data(), &at_once) ==
         static_cast<long>(events.size())) {
  }
}

bool submit(aio_context_t context, iocb& request) noexcept {
  discard_events(context);
  iocb* requests[] = {&request};
  return syscall(SYS_io_submit, context, 1L, requests) == 1;
}

}  // namespace

EventRelay::EventRelay(int source)
    : event_(UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), FdRange::kSelectable), owner_(process_id()) {
  request_.aio_lio_opcode = IOCB_CMD_POLL;
  request_.aio_fildes = static_cast<std::uint32_t>(source);
  request_.aio_buf = POLLIN;
  request_.aio_flags = IOCB_FLAG_RESFD;
  request_.aio_resfd = static_cast<std::uint32_t>(event_.number());
}

Result<std::unique_ptr<EventRelay>> EventRelay::from(int source) {
  std::unique_ptr<EventRelay> relay(new EventRelay(source));
  if (!relay->event_.valid()) return os_error("eventfd", errno);
  Status requested = relay->request();
  if (!requested) return std::move(requested).error();
  return relay;
}

Status EventRelay::request() noexcept {
  forget_contexts_of_parent();
  for (std::size_t i = 0; i < kMaxContexts; ++i) {
    context_ = context_at(i);
    if (context_ == 0) return os_error("io_setup", errno);
    if (submit(context_, request_)) return success();
    if (errno != EAGAIN) break;  // EAGAIN: the context is full
  }
  return os_error("io_submit of a poll request", errno);
}

void EventRelay::rearm() noexcept {
  if (owner_ != process_id()) return;
  const int saved = errno;
  std::uint64_t count = 0;
  // A request that has not fired is still pending.
  if (read(event_.number(), &count, sizeof count) == sizeof count && !request().ok()) {
    count = 1;  // readable without a message is better than never readable again
    [[maybe_unused]] const ssize_t written = write(event_.number(), &count, sizeof count);
  }
  errno = saved;
}

EventRelay::~EventRelay() {
  if (owner_ != process_id() || context_ == 0) return;
  const int saved = errno;
  io_event unused{};
  syscall(SYS_io_cancel, context_, &request_, &unused);  // otherwise the request would keep its source open
  errno = saved;
}

}  // namespace shmtree::platform
