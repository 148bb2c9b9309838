// An arena after the program has closed its descriptors.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

template <class T>
bool says_closed(const Result<T>& result) {
  return !result && result.code() == Code::kOs && result.error().os_errno == EBADF;
}

// Closes all descriptors that shmtree keeps, and opens files of the program under their numbers.
std::vector<int> replace_all() {
  const std::vector<int> kept = kept_descriptors();
  for (const int number : kept) {
    const UniqueFd mine = create_memory_file("mine", 4096).value();
    dup2(mine.get(), number);
  }
  return kept;
}
bool are_untouched(const std::vector<int>& numbers) {
  for (const int number : numbers) {
    struct stat status {};
    if (fstat(number, &status) != 0 || status.st_size != 4096 || status.st_blocks != 0) return false;
    if (byte_is_locked(number, 0) || lseek(number, 0, SEEK_CUR) != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("An arena without its descriptor fails and grows no file") {
  auto arena = new_arena();
  Child child([&] {
    const std::vector<int> mine = replace_all();
    const bool first = says_closed(arena->allocate(kMiB, BlockKind::kMessage, patience()));
    // this process counts as dead
    const bool second = says_closed(arena->allocate(16, BlockKind::kMessage, patience()));
    const bool third = says_closed(arena->reconcile(patience())) && says_closed(arena->identity());
    arena->allocator().trim();
    return first && second && third && are_untouched(mine);
  });
  CHECK(child.succeeded());
}

TEST_CASE("A child of a process without the descriptor cannot attach") {
  auto arena = new_arena();
  Child parent([&] {
    const std::vector<int> mine = replace_all();
    Child child([&] { return says_closed(arena->identity()) && are_untouched(mine); });
    return child.succeeded() && are_untouched(mine);
  });
  CHECK(parent.succeeded());
}

TEST_CASE("A check for dead participants detects a closed lock") {
  auto arena = new_arena();
  Child child([&] {
    for (const int kept : kept_descriptors()) {
      if (kept != arena->fd()) close(kept);
    }
    return arena->participants().check(0) && says_closed(arena->reconcile(patience())) &&
           says_closed(arena->identity());
  });
  CHECK(child.succeeded());
}

TEST_CASE("Others reclaim the pins of a process without descriptors") {
  auto arena = new_arena();
  const std::uint64_t before = arena->pool().used_bytes();
  Gate closed, seen;
  Child child([&] {
    const Lease held = new_lease(*arena, kMiB);
    replace_all();
    const bool told = says_closed(arena->allocate(kMiB, BlockKind::kMessage, patience()));
    closed.open();
    seen.wait();
    return told;
  });
  closed.wait();
  REQUIRE(arena->participants().check(0));
  arena->reconcile(patience()).value();
  CHECK(arena->pool().used_bytes() == before);
  seen.open();
  CHECK(child.succeeded());
}

TEST_CASE("A mapping error reports that the descriptor is closed") {
  auto arena = new_arena();
  const Lease lease = new_lease(*arena, 4 * kMiB);
  const BlockRef ref = lease.ref();
  auto other = [&] { return arena->hold_existing(ref, BlockKind::kArray, patience()); };
  CHECK(other().ok());
  const Error error = arena->unmapped("a test");
  CHECK(error.code == Code::kOutOfSharedMemory);
  Child child([&] {
    replace_all();
    return arena->unmapped("a test").os_errno == EBADF;
  });
  CHECK(child.succeeded());
}
