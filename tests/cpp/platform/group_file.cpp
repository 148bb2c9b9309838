// A memory file with several contents: its limits, and its protection against other writers.
#include "platform/group_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::platform;

namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// Returns a file with `bytes` times that letter.
UniqueFd file_of(char letter, std::uint64_t bytes) {
  UniqueFd fd(memfd_create("contents", MFD_CLOEXEC));
  const std::string text(bytes, letter);
  REQUIRE(write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(bytes));
  return fd;
}

}  // namespace

TEST_CASE("A group file has each added file at a page of its own") {
  GroupFile made = GroupFile::make("test", kMiB).value();
  GroupFile group = std::move(made);
  const std::uint64_t page = page_size();
  const std::uint64_t first = group.add(file_of('a', page + 1).get(), page + 1).value().value();
  const std::uint64_t second = group.add(file_of('b', 100).get(), 100).value().value();
  CHECK(first == page);
  CHECK(second == 3 * page);
  const UniqueFd fd = group.open().value();
  const std::byte* const mapped = map_for_reading(fd.get(), 100, second).value();
  CHECK(mapped[99] == std::byte{'b'});
  unmap(mapped, 100);
}

TEST_CASE("A full group file takes no more") {
  GroupFile group = GroupFile::make("test", 4 * page_size()).value();
  const UniqueFd large = file_of('a', 3 * page_size());
  CHECK_FALSE(group.add(large.get(), 4 * page_size()).value());
  CHECK(group.add(large.get(), 3 * page_size()).value());
  CHECK_FALSE(group.add(large.get(), 1).value());
}

TEST_CASE("Adding more bytes than a file has is an error") {
  GroupFile group = GroupFile::make("test", kMiB).value();
  CHECK(group.add(file_of('a', 10).get(), 20).code() == Code::kOs);
  CHECK(group.add(file_of('b', 20).get(), 20).value() == page_size());
}

TEST_CASE("Only a group file itself writes to its memory") {
  const GroupFile group = GroupFile::make("test", kMiB).value();
  const UniqueFd opened = group.open().value();
  const UniqueFd fd(open(("/proc/self/fd/" + std::to_string(opened.get())).c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(fd.valid());
  CHECK(write(fd.get(), "x", 1) == -1);
  CHECK(errno == EPERM);
  CHECK(ftruncate(fd.get(), 0) == -1);
  CHECK(ftruncate(fd.get(), 2 * kMiB) == -1);
  CHECK(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) == MAP_FAILED);
}
