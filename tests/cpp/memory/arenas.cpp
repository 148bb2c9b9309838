// Creating arenas, attaching to them, and the effect of resource limits of the process.
#include "support/arenas.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "platform/memory_limits.h"
#include "support/catch2.h"
#include "support/versions.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Does not use the macros of Catch2, because several threads call it at once. Arena::attach() reports a failure.
UniqueFd duplicate(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

// Returns a new file with the first header bytes of a real arena, after `change` has altered them.
template <class Change>
UniqueFd altered_copy(Change change) {
  auto arena = new_arena();
  const std::uint64_t bytes = arena->blocks().geometry().file_bytes();
  UniqueFd fd = create_memory_file("copy", bytes).value();
  std::byte* at = map_shared(fd.get(), 0, memory::kHeaderBytes).value();
  std::memcpy(at, static_cast<const void*>(&arena->header()), 64);
  at[16] ^= std::byte{1};  // another uuid
  change(*reinterpret_cast<memory::ArenaHeader*>(at));
  unmap(at, memory::kHeaderBytes);
  return fd;
}

Code code_of_attach(UniqueFd fd) {
  auto arena = Arena::attach(std::move(fd));
  REQUIRE_FALSE(arena.ok());
  REQUIRE_FALSE(arena.error().message.empty());
  return arena.code();
}

ArenaOptions budget(std::uint64_t bytes) {
  ArenaOptions options;
  options.max_bytes = bytes;
  return options;
}

}  // namespace

TEST_CASE("A new arena is sealed and empty and passes its check") {
  auto arena = new_arena();
  CHECK(size_is_sealed(arena->fd()));
  CHECK(arena->inspector().stats().used_bytes == 0);
  CHECK(arena->inspector().stats().participants == 1);
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A default budget is at least 1 MiB and fits the free memory") {
  auto arena = Arena::create({}).value();
  CHECK(arena->pool().max_bytes() >= kMiB);
  CHECK(arena->pool().max_bytes() <= available_memory_bytes());
}

TEST_CASE("A budget under 1 MiB or over 2 TiB is refused") {
  for (const std::uint64_t bytes : {std::uint64_t{1000}, std::uint64_t{3} << 40, ~std::uint64_t{0} - 5}) {
    auto arena = Arena::create(budget(bytes));
    REQUIRE_FALSE(arena.ok());
    CHECK(arena.code() == Code::kInvalid);
    CHECK(arena.error().message.find(std::to_string(bytes)) != std::string::npos);
  }
}

TEST_CASE("The smallest and the largest budget work") {
  for (const std::uint64_t bytes : {kMiB, std::uint64_t{2} << 40}) {
    auto arena = Arena::create(budget(bytes)).value();
    const Lease lease = new_lease(*arena, kMiB);
    lease.data()[kMiB - 1] = std::byte{1};
    CHECK(check_arena(*arena) == "");
  }
}

TEST_CASE("Attaching twice in a process returns the same arena") {
  auto arena = new_arena();
  CHECK(Arena::attach(duplicate(arena->fd())).value() == arena);
  CHECK(Arena::find(arena->uuid()) == arena);
}

TEST_CASE("A process that attaches by descriptor sees the same bytes") {
  auto arena = new_arena();
  Lease lease = new_lease(*arena);
  lease.data()[17] = std::byte{42};
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(arena->fd());
  const BlockRef ref = lease.ref();
  Child child([&] {
    // Use nothing that was inherited: the child stands for an unrelated process.
    lease.reset();
    arena.reset();
    auto mine = Arena::attach(UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC))).value();
    const Lease held = mine->hold_existing(ref, BlockKind::kArray, patience()).value();
    return held.data()[17] == std::byte{42} && mine->inspector().stats().participants == 2;
  });
  CHECK(child.succeeded());
}

TEST_CASE("Releasing an arena frees its participant slot") {
  auto arena = new_arena();
  const UniqueFd fd = duplicate(arena->fd());
  arena.reset();
  auto again = Arena::attach(duplicate(fd.get())).value();
  CHECK(again->inspector().stats().participants == 1);
  CHECK(memory::slot_of(again->identity().value()) == 0);
  CHECK_FALSE(memory::needs_recovery(again->header()));
}

TEST_CASE("Threads find and attach and drop arenas concurrently") {
  auto kept = new_arena();
  std::vector<std::thread> threads;
  std::atomic<bool> good{true};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        auto mine = new_arena(kMiB);
        auto same = Arena::attach(duplicate(mine->fd())).value();
        if (same != mine || Arena::find(kept->uuid()) != kept) good = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good);
}

TEST_CASE("An ordinary file is no arena") {
  char name[] = "/tmp/shmtree-test-XXXXXX";
  UniqueFd fd(mkstemp(name));
  unlink(name);
  CHECK(code_of_attach(std::move(fd)) == Code::kIncompatible);
}

TEST_CASE("A device is no arena") {
  CHECK(code_of_attach(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))) == Code::kIncompatible);
}

TEST_CASE("A sealed file of zeros is no arena") {
  CHECK(code_of_attach(create_memory_file("zeros", 64 * kMiB).value()) == Code::kIncompatible);
}

TEST_CASE("A sealed file shorter than a header is no arena") {
  CHECK(code_of_attach(create_memory_file("short", 4096).value()) == Code::kIncompatible);
}

TEST_CASE("A file without a sealed size is refused") {
  auto arena = new_arena();
  UniqueFd fd(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(arena->blocks().geometry().file_bytes())) == 0);
  CHECK(code_of_attach(std::move(fd)) == Code::kIncompatible);
}

TEST_CASE("A copy of an arena header attaches as an arena") {
  CHECK(Arena::attach(altered_copy([](memory::ArenaHeader&) {})).ok());
}

// guarantee: version-mismatch
TEST_CASE("Another layout version is refused and the error names both") {
  auto arena = Arena::attach(altered_copy([](memory::ArenaHeader& header) { header.version = 77; }));
  REQUIRE_FALSE(arena.ok());
  CHECK(names_versions(arena.error(), 77, memory::kVersion));
}

TEST_CASE("A header of another size is refused") {
  CHECK(code_of_attach(altered_copy([](memory::ArenaHeader& header) { header.header_bytes += 64; })) ==
        Code::kIncompatible);
}

TEST_CASE("A file truncated below what its budget needs is refused") {
  CHECK(code_of_attach(altered_copy([](memory::ArenaHeader& header) { header.max_bytes *= 2; })) ==
        Code::kIncompatible);
}

TEST_CASE("An excessive budget in a header is refused") {
  CHECK(code_of_attach(altered_copy([](memory::ArenaHeader& header) { header.max_bytes = ~std::uint64_t{0}; })) ==
        Code::kIncompatible);
}

TEST_CASE("RLIMIT_FSIZE makes a large arena fail and a small one work") {
  CHECK(succeeds_with_limit(RLIMIT_FSIZE, 200 * kMiB, [] {
    auto large = Arena::create(budget(64 * kMiB));
    return !large && large.code() == Code::kOs && large.error().os_errno == EFBIG && Arena::create(budget(kMiB)).ok();
  }));
}

TEST_CASE("Arenas fail without descriptors and work once some are free") {
  if (under_valgrind()) {
    WARN("valgrind has its own descriptors and keeps the limit to itself");
    return;
  }
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 64, [] {
    std::vector<std::shared_ptr<Arena>> arenas;
    for (int i = 0; i < 100; ++i) {
      auto arena = Arena::create(budget(kMiB));
      if (!arena) {
        const bool named = arena.error().os_errno == EMFILE;
        arenas.clear();
        return named && i > 10 && Arena::create(budget(kMiB)).ok();
      }
      arenas.push_back(*arena);
    }
    return false;
  }));
}

TEST_CASE("A block over the address limit fails and smaller ones fit") {
  if (!address_limit_works()) {
    WARN("this tool needs more addresses than a limit would leave");
    return;
  }
  CHECK(succeeds_with_limit(RLIMIT_AS, 512 * kMiB, [] {
    auto arena = Arena::create(budget(std::uint64_t{4} << 30)).value();
    auto large = arena->allocate(std::uint64_t{1} << 30, BlockKind::kMessage, no_wait());
    const bool refused = !large && large.code() == Code::kOutOfSharedMemory;
    return refused && arena->allocate(kMiB, BlockKind::kMessage, no_wait()).ok() && check_arena(*arena) == "";
  }));
}

TEST_CASE("Three hundred arenas live in one process at once") {
  std::vector<std::shared_ptr<Arena>> arenas;
  std::vector<Lease> leases;
  for (int i = 0; i < 300; ++i) {
    arenas.push_back(new_arena(std::uint64_t{1} << 30));
    leases.push_back(new_lease(*arenas.back()));
    leases.back().data()[0] = static_cast<std::byte>(i);
  }
  for (int i = 0; i < 300; ++i) CHECK(leases[static_cast<std::size_t>(i)].data()[0] == static_cast<std::byte>(i));
}

TEST_CASE("300 arenas fit into 8 GB of addresses and survive a fork") {
  if (!address_limit_works()) {
    WARN("this tool needs more addresses than a limit would leave");
    return;
  }
  CHECK(succeeds_with_limit(RLIMIT_AS, 8'000'000'000, [] {
    std::vector<Lease> leases;
    for (int i = 0; i < 300; ++i) leases.push_back(new_lease(*new_arena(std::uint64_t{8} << 30)));
    Child child([&] { return leases.back().arena()->current_identity() != memory::kNoIdentity; });
    return child.succeeded();
  }));
}

TEST_CASE("An arena with prefaulted bytes has their pages already") {
  ArenaOptions options = budget(64 * kMiB);
  options.prefault = 8 * kMiB;
  auto arena = Arena::create(options).value();
  CHECK(file_pages_bytes(*arena) >= 8 * kMiB);
  CHECK(used_bytes(*arena) == 0);
  CHECK_FALSE(new_block(*arena, 8 * kMiB).cold());
}

TEST_CASE("A prefault over the budget is refused") {
  ArenaOptions options = budget(4 * kMiB);
  options.prefault = 8 * kMiB;
  auto arena = Arena::create(options);
  REQUIRE_FALSE(arena.ok());
  CHECK(arena.code() == Code::kMessageTooLarge);
}

// guarantee: small-core-dumps
TEST_CASE("A core dump of a process with a large arena commits no pages") {
  std::ifstream pattern_file("/proc/sys/kernel/core_pattern");
  std::string pattern;
  std::getline(pattern_file, pattern);
  rlimit limit{};
  getrlimit(RLIMIT_CORE, &limit);
  if (pattern.empty() || pattern[0] == '|' || pattern[0] == '/' || limit.rlim_max < 64 * kMiB || kAddressSanitizer ||
      kThreadSanitizer || under_valgrind()) {
    WARN("no core file can be written here (pattern " + pattern + "); the mappings' flags are tested elsewhere");
    return;
  }
  char folder[] = "/tmp/shmtree-core-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  auto arena = new_arena(std::uint64_t{8} << 30);
  OwnedBlock block = new_block(*arena, std::uint64_t{64} << 20);
  const std::uint64_t before = file_pages_bytes(*arena);
  Child child([&] {
    const rlimit large{limit.rlim_max, limit.rlim_max};
    setrlimit(RLIMIT_CORE, &large);
    if (chdir(folder) != 0) return false;
    // A mapping with holes, like that of a large block that was used in part.
    static_cast<void>(arena->blocks().address(BlockId::make(32, 0)));
    signal(SIGABRT, SIG_DFL);
    std::abort();
  });
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0);
  CHECK(info.si_code == CLD_DUMPED);
  CHECK(file_pages_bytes(*arena) <= before + 64 * 1024);
  const std::string remove = "rm -rf " + std::string(folder);
  CHECK(std::system(remove.c_str()) == 0);
}
