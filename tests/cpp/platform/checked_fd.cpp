// Descriptors that are compared with their file before each use.
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "platform/process_watch.h"
#include "platform/wake_pipe.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::platform;
using namespace shmtree::test;

namespace {

UniqueFd new_file() {
  return create_memory_file("test", 4096).value();
}
bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}
bool is_listed(int fd) {
  return std::ranges::binary_search(kept_descriptors(), fd);
}
// Replaces a descriptor, as a program does that closes all descriptors and opens its own file.
UniqueFd replace(int number) {
  const UniqueFd mine = new_file();
  REQUIRE(dup2(mine.get(), number) == number);
  return UniqueFd(number);
}

}  // namespace

TEST_CASE("A descriptor is ours until the program closes it") {
  const CheckedFd fd(new_file());
  CHECK(fd.is_ours());
  CHECK(fd.get("a test").value() == fd.number());
  close(fd.number());
  CHECK_FALSE(fd.is_ours());
  CHECK(fd.get("a test").code() == Code::kOs);
  CHECK(fd.get("a test").error().os_errno == EBADF);
  CHECK(fd.get("a test").error().message.find(std::to_string(fd.number())) != std::string::npos);
}

TEST_CASE("A foreign file under our number is neither used nor closed") {
  std::optional<CheckedFd> fd(new_file());
  const int number = fd->number();
  const UniqueFd mine = replace(number);
  errno = 77;
  CHECK_FALSE(fd->is_ours());
  CHECK(errno == 77);
  fd.reset();
  CHECK(is_open(number));
}

TEST_CASE("A descriptor is listed until its owner closes it") {
  std::optional<CheckedFd> fd(new_file());
  const int number = fd->number();
  CHECK(is_listed(number));
  CheckedFd moved = std::move(*fd);
  fd.reset();
  CHECK(is_open(number));
  CHECK(is_listed(number));
  moved.reset();
  CHECK_FALSE(moved.valid());
  CHECK_FALSE(is_open(number));
  CHECK_FALSE(is_listed(number));
}

TEST_CASE("Kept descriptors are high unless select() must take them") {
  if (under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 4096, [] {
    const CheckedFd high(new_file()), for_select(new_file(), FdRange::kSelectable);
    return high.number() >= 1024 && for_select.number() >= 512 && for_select.number() < 1024;
  }));
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 64, [] {
    const CheckedFd low(new_file());
    return low.number() >= 32 && low.number() < 64;
  }));
}

TEST_CASE("A descriptor keeps its number if no high number is free") {
  if (under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 64, [] {
    UniqueFd file = new_file();
    const int number = file.get();
    while (dup(0) >= 0) {
    }
    const CheckedFd fd(std::move(file));
    return fd.number() == number && fd.is_ours();
  }));
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 2048, [] {
    for (int number = 512; number < 1024; ++number) dup2(0, number);
    const CheckedFd fd(new_file(), FdRange::kSelectable);
    return fd.valid() && fd.number() < 512;
  }));
}

TEST_CASE("A foreign epoll is not mistaken for ours") {
  const WakePipe pipe = WakePipe::open(WakeKind::kBytes).value();
  auto watch = std::make_optional(ProcessWatch::around(pipe.descriptor()).value());
  const int self[] = {getpid()};
  watch->watch(self).value();
  REQUIRE(watch->is_ours());
  std::vector<UniqueFd> mine;
  for (const int kept : kept_descriptors()) {
    if (kept == pipe.number()) continue;
    const UniqueFd epoll(epoll_create1(0));
    REQUIRE(dup2(epoll.get(), kept) == kept);
    mine.emplace_back(kept);
  }
  CHECK_FALSE(watch->is_ours());
  watch.reset();
  for (const UniqueFd& each : mine) CHECK(is_open(each.get()));
}

TEST_CASE("A destroyed watch closes all of its descriptors") {
  const WakePipe pipe = WakePipe::open(WakeKind::kBytes).value();
  const auto before = kept_descriptors();
  auto watch = std::make_optional(ProcessWatch::around(pipe.descriptor()).value());
  const int pids[] = {getpid(), getppid()};
  watch->watch(pids).value();
  CHECK(kept_descriptors().size() == before.size() + 3);
  watch->watch(std::span(pids, 1)).value();
  CHECK(kept_descriptors().size() == before.size() + 2);
  watch.reset();
  CHECK(kept_descriptors() == before);
}
