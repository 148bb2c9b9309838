// Sealed memory files, their pages and the locks on their bytes.
#include "platform/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::platform;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::uint64_t allocated_bytes(int fd) {
  struct stat status {};
  REQUIRE(fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

UniqueFd new_file(std::uint64_t bytes = 64 * kMiB) {
  return create_memory_file("test", bytes).value();
}

// Returns the line VmFlags of the mapping that begins at this address.
std::string flags_of_mapping(const std::byte* begin) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(begin) << '-';
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  for (bool is_ours = false; std::getline(maps, line);) {
    is_ours = is_ours || line.starts_with(start.str());
    if (is_ours && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

}  // namespace

// guarantee: sealed-memory
TEST_CASE("A memory file cannot be resized or given other seals") {
  const UniqueFd fd = new_file();
  REQUIRE(size_is_sealed(fd.get()));
  CHECK(ftruncate(fd.get(), 0) == -1);
  CHECK(ftruncate(fd.get(), 128 << 20) == -1);
  CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
  CHECK(file_size(fd.get()).value() == 64 * kMiB);
}

TEST_CASE("A memory file is closed by exec") {
  const UniqueFd fd = new_file();
  CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((fcntl(reopen(fd.get()).value().get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("A file over RLIMIT_FSIZE fails with both numbers") {
  CHECK(succeeds_with_limit(RLIMIT_FSIZE, 1u << 20, [] {
    auto fd = create_memory_file("test", 2 * kMiB);
    return !fd && fd.error().os_errno == EFBIG && fd.error().message.find("2097152") != std::string::npos &&
           fd.error().message.find("1048576") != std::string::npos;
  }));
}

TEST_CASE("Creating a file without descriptors names the operation") {
  if (under_valgrind()) {
    WARN("valgrind has its own descriptors and keeps the limit to itself");
    return;
  }
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 3, [] {
    auto fd = create_memory_file("test", kMiB);
    return !fd && fd.error().os_errno == EMFILE && fd.error().message.find("memfd_create") != std::string::npos;
  }));
}

TEST_CASE("commit_pages allocates pages and release_pages returns them") {
  const UniqueFd fd = new_file();
  CHECK(allocated_bytes(fd.get()) == 0);
  REQUIRE(commit_pages(fd.get(), 4 * kMiB, 20 * kMiB).ok());
  CHECK(allocated_bytes(fd.get()) == 20 * kMiB);
  REQUIRE(release_pages(fd.get(), 4 * kMiB, 16 * kMiB));
  CHECK(allocated_bytes(fd.get()) == 4 * kMiB);
  CHECK(file_size(fd.get()).value() == 64 * kMiB);
}

TEST_CASE("Released pages read as zero") {
  const UniqueFd fd = new_file();
  std::byte* at = map_shared(fd.get(), 0, kMiB).value();
  std::memset(at, 1, kMiB);
  REQUIRE(release_pages(fd.get(), 0, kMiB));
  CHECK(at[4096] == std::byte{0});
  unmap(at, kMiB);
}

TEST_CASE("commit_pages succeeds under a timer that interrupts calls") {
  Child child([] {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART, which some profilers leave out
    sigaction(SIGALRM, &action, nullptr);
    const itimerval timer{{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &timer, nullptr);
    const UniqueFd fd = create_memory_file("test", 64 * kMiB).value();
    return commit_pages(fd.get(), 0, 64 * kMiB).ok();
  });
  CHECK(child.succeeded());
}

TEST_CASE("pages_from finds the end of the first run of pages") {
  const UniqueFd fd = new_file();
  std::byte* at = map_shared(fd.get(), 0, kMiB).value();
  std::memset(at, 1, 3 * 4096);
  at[5 * 4096] = std::byte{1};
  CHECK(pages_from(fd.get(), 0, kMiB) == 3 * 4096);
  CHECK(pages_from(fd.get(), 4096, 4096) == 4096);
  CHECK(pages_from(fd.get(), 3 * 4096, kMiB) == 0);
  unmap(at, kMiB);
}

TEST_CASE("Mappings are left out of core dumps") {
  if (under_valgrind()) {
    WARN("valgrind shows its own /proc/self/smaps");
    return;
  }
  const UniqueFd fd = new_file();
  const std::byte* const written = map_shared(fd.get(), 0, 8 * kMiB).value();
  CHECK(flags_of_mapping(written).find(" dd") != std::string::npos);
  unmap(written, 8 * kMiB);
  const std::byte* const read = map_for_reading(fd.get(), 8 * kMiB).value();
  CHECK(flags_of_mapping(read).find(" dd") != std::string::npos);
  unmap(read, 8 * kMiB);
}

TEST_CASE("A byte lock of a killed process is free before it is reaped") {
  const UniqueFd fd = new_file();
  Gate locked, died;
  Child child([&] {
    const UniqueFd own = reopen(fd.get()).value();
    const bool ok = try_lock_byte(own.get(), 7).value();
    locked.open(ok);
    pause();
    return true;
  });
  REQUIRE(locked.wait() == 1);
  REQUIRE(byte_is_locked(fd.get(), 7));
  REQUIRE_FALSE(byte_is_locked(fd.get(), 6));
  child.signal(SIGKILL);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0);  // still a zombie
  CHECK_FALSE(byte_is_locked(fd.get(), 7));
}

TEST_CASE("A byte lock outlives a stop of its process") {
  const UniqueFd fd = new_file();
  Gate locked;
  Child child([&] {
    const UniqueFd own = reopen(fd.get()).value();
    locked.open(try_lock_byte(own.get(), 7).value());
    pause();
    return true;
  });
  locked.wait();
  child.signal(SIGSTOP);
  child.wait_until_stopped();
  CHECK(byte_is_locked(fd.get(), 7));
}

TEST_CASE("Two descriptions cannot lock the same byte") {
  const UniqueFd fd = new_file(), one = reopen(fd.get()).value(), other = reopen(fd.get()).value();
  REQUIRE(try_lock_byte(one.get(), 3).value());
  CHECK_FALSE(try_lock_byte(other.get(), 3).value());
  REQUIRE(unlock_byte(one.get(), 3).ok());
  CHECK(try_lock_byte(other.get(), 3).value());
}

TEST_CASE("A byte lock moves from one file description to another") {
  const UniqueFd fd = new_file();
  UniqueFd from = reopen(fd.get()).value();
  const UniqueFd to = reopen(fd.get()).value();
  REQUIRE(try_lock_byte(from.get(), 3).value());
  REQUIRE(move_byte_lock(from.get(), to.get(), 3).ok());
  CHECK(byte_is_locked(from.get(), 3));
  from.reset();
  CHECK(byte_is_locked(fd.get(), 3));
}

TEST_CASE("A mapping without address space fails and names its size") {
  if (!address_limit_works()) {
    WARN("this tool needs more addresses than a limit would leave");
    return;
  }
  Child child([] {
    const UniqueFd fd = create_memory_file("test", 1u << 30).value();
    const rlimit limit{512u << 20, 512u << 20};
    setrlimit(RLIMIT_AS, &limit);
    auto mapped = map_shared(fd.get(), 0, 1u << 30);
    return !mapped && mapped.error().os_errno == ENOMEM &&
           mapped.error().message.find("1073741824") != std::string::npos;
  });
  CHECK(child.succeeded());
}
