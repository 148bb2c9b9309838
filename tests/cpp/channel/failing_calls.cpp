// System calls that fail in this process. Each call then returns an Error, leaves nothing locked, and does not affect
// other processes.
#include "support/failing_calls.h"

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::size_t kInline = 3;
constexpr std::size_t kBlock = 5'000;

struct FailingCall {
  const char* name;
  long number;
  int error;
};
std::ostream& operator<<(std::ostream& out, const FailingCall& call) {
  return out << call.name << " fails with errno " << call.error;
}

// Makes calls of all kinds. Any result is allowed, since failed system calls cause errors, but each call must return.
void use_everything(const std::shared_ptr<Arena>& arena, Channel& channel) {
  auto made = Arena::create({.max_bytes = 8 * kMiB, .prefault = 0, .huge_pages = false});
  if (made) static_cast<void>(Channel::create(*made, with_capacity(2)).ok());
  static_cast<void>(channel.watchers().wake_fd(End::kReceiving).ok());
  for (std::uint64_t i = 0; i < 3; ++i) {
    static_cast<void>(put(channel, i, kInline, no_wait()).ok());
    static_cast<void>(put(channel, i, 200'000 * (i + 1), no_wait()).ok());
    auto message = get_message(channel, no_wait());
    if (message && message->in_block()) static_cast<void>(message->adopt().ok());
    auto taken = take(channel, no_wait());
    if (taken) static_cast<void>(taken->ack(no_wait()).ok());
  }
  if (auto slot = arena->reconciler().reserve_slot()) arena->participants().abandon(std::move(*slot));
  static_cast<void>(arena->allocator().trim());
  const int pid = fork();
  if (pid == 0) {
    static_cast<void>(get(channel, no_wait()).ok());
    _exit(0);
  }
  if (pid > 0) waitpid(pid, nullptr, 0);
  static_cast<void>(get(channel, WaitContext{Deadline::after_ns(1'000'000)}).ok());
}

}  // namespace

TEST_CASE("Failing system calls cause no damage to other processes") {
  if (kAddressSanitizer || kThreadSanitizer || under_valgrind()) return;  // their own calls would fail too
  const FailingCall call = GENERATE(
      FailingCall{"fallocate", SYS_fallocate, ENOSPC}, FailingCall{"fallocate", SYS_fallocate, ENOMEM},
      FailingCall{"fallocate", SYS_fallocate, EOPNOTSUPP}, FailingCall{"mmap", SYS_mmap, ENOMEM},
      FailingCall{"madvise", SYS_madvise, EINVAL}, FailingCall{"ftruncate", SYS_ftruncate, ENOSPC},
      FailingCall{"memfd_create", SYS_memfd_create, EMFILE}, FailingCall{"memfd_create", SYS_memfd_create, ENOSYS},
      FailingCall{"fcntl", SYS_fcntl, ENOLCK}, FailingCall{"openat", SYS_openat, EMFILE},
      FailingCall{"openat", SYS_openat, EACCES}, FailingCall{"futex", SYS_futex, EINTR},
      FailingCall{"futex", SYS_futex, ENOSYS}, FailingCall{"write", SYS_write, ENOMEM},
      FailingCall{"write", SYS_write, EPERM}, FailingCall{"read", SYS_read, ENOMEM},
      FailingCall{"pipe2", SYS_pipe2, EMFILE}, FailingCall{"openat", SYS_openat, ENOENT},
      FailingCall{"clone", SYS_clone, EAGAIN}, FailingCall{"getrandom", SYS_getrandom, ENOSYS},
      FailingCall{"lseek", SYS_lseek, EINVAL}, FailingCall{"munmap", SYS_munmap, ENOMEM});
  INFO(call);
  auto arena = new_arena();
  auto channel = new_channel(arena);
  put(*channel, 0, kBlock).value();
  Child child([&] {
    if (!fail_call(call.number, call.error)) return true;
    use_everything(arena, *channel);
    return true;
  });
  REQUIRE(child.succeeded());
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(check_arena(*arena) == "");
  drain(*channel);
  REQUIRE(put(*channel, 9, kBlock).ok());
  REQUIRE(get(*channel).value() == 9);
  REQUIRE(arena->allocator().trim() + file_pages_bytes(*arena) > 0);
  REQUIRE(check_arena(*arena) == "");
  REQUIRE(check_arena(*new_arena()) == "");
}
