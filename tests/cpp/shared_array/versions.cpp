// Versions of a block's data: one writer at a time, no torn copies, and recovery from dead and stopped writers.
#include "shared_array/versions.h"

#include <algorithm>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;
using shared_array::Extent;
using shared_array::Versioned;
using shared_array::Versions;

namespace {

// A block with the number of the last write in each word.
class Shared {
 public:
  explicit Shared(std::uint64_t bytes = 4096) : arena(new_arena()), bytes_(bytes) {
    lease = new_lease(*arena, Versions::block_bytes(bytes));
    std::memset(lease.data(), 0, bytes);
    Versions::init(lease.data(), bytes);
  }
  Versions versions() const { return Versions::of(lease, bytes_).value(); }
  Versioned& words() const { return *reinterpret_cast<Versioned*>(lease.data() + bytes_); }
  void fill(std::uint64_t value) const {
    std::fill_n(reinterpret_cast<std::uint64_t*>(lease.data()), bytes_ / 8, value);
  }
  bool write(std::uint64_t value) const {
    if (!versions().begin_write(patience(), Extent::kWhole)) return false;
    fill(value);
    return versions().end_write(true).ok();
  }
  // Returns the number in all words of a copy, or the error.
  Result<std::uint64_t> read(const WaitContext& wait = patience()) const {
    std::vector<std::uint64_t> copy(bytes_ / 8, ~std::uint64_t{0});
    auto version = versions().read(reinterpret_cast<std::byte*>(copy.data()), wait);
    if (!version) return std::move(version).error();
    const bool one = std::all_of(copy.begin(), copy.end(), [&](std::uint64_t word) { return word == copy[0]; });
    return one ? Result<std::uint64_t>(copy[0]) : Error{Code::kCorrupt, "torn"};
  }

  std::shared_ptr<Arena> arena;
  Lease lease;

 private:
  std::uint64_t bytes_;
};

}  // namespace

TEST_CASE("A copy has the last write and the version counts writes") {
  Shared shared;
  REQUIRE(shared.read().value() == 0);
  REQUIRE(shared.versions().version() == 0);
  REQUIRE(shared.write(7));
  REQUIRE(shared.write(8));
  REQUIRE(shared.read().value() == 8);
  REQUIRE(shared.versions().version() == 2);
  REQUIRE_FALSE(shared.versions().is_torn());
}

TEST_CASE("A block without versions is refused") {
  auto arena = new_arena();
  const Lease plain = filled_lease(*arena, 8192, 0);
  REQUIRE(Versions::of(plain, 4096).code() == Code::kInvalid);
  REQUIRE(Versions::of(plain, 8192).code() == Code::kInvalid);
}

// guarantee: shared-array-read
TEST_CASE("Readers get whole copies while processes keep writing") {
  constexpr std::uint64_t kBytes = 2 * kMiB;
  Shared shared(kBytes);
  const auto write_for_ever = [&] {
    for (std::uint64_t i = 1; shared.write(i); ++i) {
    }
    return false;
  };
  Child one(write_for_ever), two(write_for_ever);
  Child reader([&] {
    for (int i = 0; i < 50; ++i) {
      if (!shared.read()) return false;
    }
    return true;
  });
  for (int i = 0; i < 50; ++i) {
    const auto read = shared.read();
    INFO((read ? "" : read.error().message));
    REQUIRE(read.ok());
  }
  REQUIRE(reader.succeeded());
}

TEST_CASE("A reader blocked by consecutive writes gets priority") {
  Shared shared;
  struct Writer final : WaitHooks {
    explicit Writer(const Shared& of) : shared(of) { begin(); }
    void begin() noexcept { writes += shared.versions().begin_write(no_wait()).ok() ? 1 : 0; }
    // The wait of the reader calls this before each sleep. A writer that can wait does so for a reader that asks.
    void before_block() noexcept override {
      static_cast<void>(shared.versions().end_write(true));
      if (shared.words().reader.load() == 0) begin();
    }
    void after_block() noexcept override {}
    bool interrupted() noexcept override { return false; }
    const Shared& shared;
    int writes = 0;
  } writer(shared);
  REQUIRE(shared.read({Deadline::after_ns(60'000'000'000), &writer}).ok());
  CHECK(writer.writes == 2);
  CHECK(shared.versions().begin_write(no_wait()).ok());
}

// guarantee: shared-array-write
TEST_CASE("Writers exclude each other within and across processes") {
  Shared shared;
  REQUIRE(shared.versions().begin_write(patience()).ok());
  const Status again = shared.versions().begin_write(no_wait());
  REQUIRE(again.code() == Code::kTimeout);
  REQUIRE(again.error().message.find(std::to_string(getpid())) != std::string::npos);
  Gate refused;
  Child other([&] {
    const bool timed_out = shared.versions().begin_write(no_wait()).code() == Code::kTimeout;
    refused.open();
    return timed_out && shared.write(5);
  });
  refused.wait();
  shared.fill(3);
  REQUIRE(shared.versions().end_write(true).ok());
  REQUIRE(other.succeeded());
  REQUIRE(shared.read().value() == 5);
  REQUIRE(shared.versions().version() == 2);
}

// guarantee: shared-array-torn
TEST_CASE("An abandoned write is torn until a write of the whole array") {
  Shared shared;
  REQUIRE(shared.versions().begin_write(patience()).ok());
  REQUIRE(shared.versions().end_write(false).ok());
  const auto read = shared.read(no_wait());
  REQUIRE(read.code() == Code::kPeerDied);
  REQUIRE(read.error().pids == std::vector<int>{getpid()});
  REQUIRE(shared.versions().is_torn());
  const Status part = shared.versions().begin_write(no_wait());
  REQUIRE(part.code() == Code::kPeerDied);
  REQUIRE(part.error().pids == std::vector<int>{getpid()});
  REQUIRE(shared.versions().is_torn());
  REQUIRE(shared.write(4));
  REQUIRE(shared.read(no_wait()).value() == 4);
  REQUIRE(shared.versions().version() == 1);
}

// guarantee: shared-array-read
TEST_CASE("A stopped writer is named at the deadline and can continue") {
  Shared shared;
  Gate writes, go_on;
  Child writer([&] {
    const bool began = shared.versions().begin_write(patience()).ok();
    writes.open();
    go_on.wait();
    shared.fill(6);
    return began && shared.versions().end_write(true).ok();
  });
  writes.wait();
  writer.signal(SIGSTOP);
  writer.wait_until_stopped();
  const std::string pid = std::to_string(writer.pid());
  const WaitContext soon{Deadline::after_ns(100'000'000)};
  const auto read = shared.read(soon);
  REQUIRE(read.code() == Code::kTimeout);
  REQUIRE(read.error().message.find(pid + ", which is stopped") != std::string::npos);
  REQUIRE(shared.versions().begin_write(soon).code() == Code::kTimeout);
  REQUIRE(shared.versions().wait_for_newer(0, soon).code() == Code::kTimeout);
  writer.signal(SIGCONT);
  go_on.open();
  REQUIRE(shared.versions().wait_for_newer(0, patience()).value() == 1);
  REQUIRE(shared.read().value() == 6);
  REQUIRE(writer.succeeded());
}

TEST_CASE("A child forked during a write cannot end it") {
  Shared shared;
  REQUIRE(shared.versions().begin_write(patience()).ok());
  Child child([&] { return shared.versions().end_write(true).code() == Code::kInvalid; });
  REQUIRE(child.succeeded());
  REQUIRE(shared.versions().begin_write(no_wait()).code() == Code::kTimeout);
  REQUIRE(shared.versions().end_write(true).ok());
  REQUIRE(shared.write(2));
}

// guarantee: shared-array-read
TEST_CASE("A stopped or killed reader does not block writers") {
  Shared shared;
  Gate asked;
  Child reader([&] {
    std::uint32_t word = memory::kHeld | shared.arena->identity().value();
    shared.words().reader.store(word);
    asked.open();
    pause();
    return false;
  });
  asked.wait();
  reader.signal(SIGSTOP);
  reader.wait_until_stopped();
  REQUIRE(shared.versions().begin_write(no_wait()).ok());
  REQUIRE(shared.versions().end_write(true).ok());
  reader.kill_and_wait();
  REQUIRE(shared.versions().begin_write(no_wait()).ok());
  REQUIRE(shared.versions().end_write(true).ok());
}

TEST_CASE("Corrupt words end calls in time until a whole write") {
  for (const std::uint64_t bits : {~std::uint64_t{0}, std::uint64_t{0x4000000140000001}, std::uint64_t{1}}) {
    Shared shared;
    shared.words().sequence.store(bits);
    shared.words().writer.store(static_cast<std::uint32_t>(bits));
    shared.words().reader.store(static_cast<std::uint32_t>(bits));
    shared.words().writer_pid.store(-1);
    REQUIRE_FALSE(shared.read(no_wait()).ok());
    REQUIRE_FALSE(shared.versions().wait_for_newer(~std::uint64_t{0}, no_wait()).ok());
    REQUIRE(shared.versions().begin_write(no_wait(), Extent::kWhole).ok());
    shared.fill(9);
    REQUIRE(shared.versions().end_write(true).ok());
    REQUIRE(shared.read(no_wait()).value() == 9);
  }
}

#if defined(SHMTREE_CRASH_POINTS)
// guarantee: shared-array-read
TEST_CASE("A writer killed anywhere leaves valid data or a torn mark") {
  std::int64_t n = 1;
  int torn = 0;
  for (bool killed = true; killed; ++n) {
    Shared shared;
    REQUIRE(shared.write(1));
    killed = killed_at_change(n, [&] { shared.write(2); });
    INFO("killed before change " << n);
    const auto read = shared.read(no_wait());
    const std::uint64_t version = shared.versions().version();
    if (read) {
      REQUIRE(*read == version);
      REQUIRE_FALSE(shared.versions().is_torn());
    } else {
      REQUIRE(read.code() == Code::kPeerDied);
      REQUIRE(shared.versions().is_torn());
      REQUIRE(version == 1);
      ++torn;
    }
    REQUIRE(shared.versions().begin_write(no_wait(), Extent::kWhole).ok());
    shared.fill(version + 1);
    REQUIRE(shared.versions().end_write(true).ok());
    REQUIRE(shared.read(no_wait()).value() == version + 1);
    REQUIRE(shared.versions().version() == version + 1);
  }
  REQUIRE(torn >= 1);
  REQUIRE(n > 5);
}

// guarantee: shared-array-torn
TEST_CASE("A write after a kill starts from whole data or fails") {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    Shared shared;
    REQUIRE(shared.write(1));
    killed = killed_at_change(n, [&] { shared.write(2); });
    INFO("killed before change " << n);
    const bool whole = shared.read(no_wait()).ok();
    const Status next = shared.versions().begin_write(no_wait());
    REQUIRE(next.ok() == whole);
    if (!whole) REQUIRE(next.code() == Code::kPeerDied);
  }
  REQUIRE(n > 5);
}

// guarantee: shared-array-torn
TEST_CASE("A process killed while it meets torn data leaves it torn") {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    Shared shared;
    REQUIRE(shared.versions().begin_write(patience()).ok());
    REQUIRE(shared.versions().end_write(false).ok());
    killed = killed_at_change(n, [&] { static_cast<void>(shared.versions().begin_write(no_wait())); });
    INFO("killed before change " << n);
    REQUIRE(shared.versions().is_torn());
    REQUIRE(shared.versions().begin_write(no_wait()).code() == Code::kPeerDied);
    REQUIRE(shared.write(3));
    REQUIRE(shared.read(no_wait()).value() == 3);
  }
  REQUIRE(n > 2);
}
#endif
