// Information about other processes.
#include "platform/other_process.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::platform;
using namespace shmtree::test;

namespace {

UniqueFd new_file(const std::string& name = "test") {
  return create_memory_file(name, 1u << 20).value();
}

bool is_zombie(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(status, text);
  return text.find(") Z ") != text.npos;
}

}  // namespace

TEST_CASE("open_from_process opens a descriptor or reports not found") {
  const UniqueFd fd = new_file();
  CHECK(file_size(open_from_process(getpid(), fd.get()).value().get()).value() == 1u << 20);
  auto absent = open_from_process(getpid(), 9999);
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.code() == Code::kNotFound);
}

TEST_CASE("A descriptor opened for reading cannot be written to") {
  const UniqueFd fd = new_file();
  const UniqueFd seen = open_from_process(getpid(), fd.get(), Access::kRead).value();
  CHECK(file_id(seen.get()).value() == file_id(fd.get()).value());
  CHECK(pwrite(seen.get(), "x", 1, 0) == -1);
  CHECK(try_map_shared(seen.get(), 0, 4096) == nullptr);
}

TEST_CASE("status_of reports the same pid in our own PID namespace") {
  CHECK(status_of(getpid()).value().pid_inside == getpid());
  CHECK(status_of(1 << 30).code() == Code::kNotFound);
}

TEST_CASE("open_from_process refuses a file that is no memory file") {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK(open_from_process(getpid(), null.get()).code() == Code::kNotFound);
}

TEST_CASE("Descriptors of a process exist until its last thread ends") {
  if (kThreadSanitizer || under_valgrind()) return;  // their runtimes end the process with its first thread
  const UniqueFd fd = new_file();
  const Gate first_ended, go;
  Child child([&]() -> bool {
    std::thread([&, first = getpid()] {
      while (!is_zombie(first)) std::this_thread::yield();
      first_ended.open();
      go.wait();
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // ends this thread only, without unwinding it
    return false;
  });
  first_ended.wait();
  CHECK(open_from_process(child.pid(), fd.get()).ok());
  CHECK_FALSE(status_of(child.pid()).value().is_stopped);
  child.signal(SIGSTOP);
  while (!status_of(child.pid()).value().is_stopped) std::this_thread::yield();
  child.signal(SIGCONT);
  go.open();
  CHECK(child.succeeded());
}

TEST_CASE("A killed process has no descriptors before it is reaped") {
  const UniqueFd fd = new_file();
  const Gate never;
  Child child([&] { return never.wait() == 0; });
  child.signal(SIGKILL);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0);
  CHECK(open_from_process(child.pid(), fd.get()).code() == Code::kNotFound);
}

TEST_CASE("is_stopped distinguishes stopped processes from others") {
  const Gate never;
  Child child([&] { return never.wait() == 0; });
  CHECK_FALSE(is_stopped(child.pid()));
  CHECK_FALSE(is_stopped(getpid()));
  CHECK_FALSE(status_of(child.pid()).value().is_stopped);
  child.signal(SIGSTOP);
  child.wait_until_stopped();
  CHECK(is_stopped(child.pid()));
  CHECK(status_of(child.pid()).value().is_stopped);
  child.kill_and_wait();
  CHECK(is_stopped(child.pid()));  // a process that cannot be seen counts as stopped
}

TEST_CASE("find_memory_file finds a file in every process that has it") {
  const std::string name = "shmtree-test-search-" + std::to_string(getpid());
  const UniqueFd fd = new_file(name);
  const Gate never;
  Child child([&] { return never.wait() == 0; });
  std::vector<std::pair<int, int>> found;
  find_memory_file(name, [&](const OpenFile& one) {
    CHECK(one.id == file_id(fd.get()).value());
    CHECK_FALSE(one.is_read_only);
    found.emplace_back(one.pid, one.fd);
    return false;
  }).value();
  std::sort(found.begin(), found.end());
  std::vector<std::pair<int, int>> expected{{getpid(), fd.get()}, {child.pid(), fd.get()}};
  std::sort(expected.begin(), expected.end());
  CHECK(found == expected);
}

TEST_CASE("find_memory_file reports a read-only descriptor as such") {
  const std::string name = "shmtree-test-reader-" + std::to_string(getpid());
  const UniqueFd fd = new_file(name);
  const UniqueFd reader = open_from_process(getpid(), fd.get(), Access::kRead).value();
  int readers = 0;
  find_memory_file(name, [&](const OpenFile& one) {
    CHECK(one.is_read_only == (one.fd == reader.get()));
    readers += one.is_read_only;
    return false;
  }).value();
  CHECK(readers == 1);
}

// guarantee: observer-is-right
TEST_CASE("Calls on other processes report exhausted descriptors") {
  if (under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  const std::string name = "shmtree-test-exhausted-" + std::to_string(getpid());
  const UniqueFd fd = new_file(name);
  const Gate never;
  Child other([&] { return never.wait() == 0; });
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 3, [&] {
    const auto opened = open_from_process(other.pid(), fd.get());
    const auto status = status_of(other.pid());
    const Status searched = find_memory_file(name, [](const OpenFile&) { return false; });
    return is_exhausted(opened.error()) && is_exhausted(status.error()) && is_exhausted(searched.error());
  }));
}
