// Free memory of the machine, read from fake /proc and /sys/fs/cgroup trees.
#include "platform/machine.h"

#include <unistd.h>

#include "platform/clock.h"
#include "platform/memory_limits.h"
#include "support/catch2.h"
#include "support/fake_machine.h"

using namespace shmtree::platform;

namespace {

using shmtree::test::Machine;

constexpr const char* kMeminfo = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n";

}  // namespace

TEST_CASE("Without control groups MemAvailable is the limit") {
  Machine machine;
  machine.write("proc/meminfo", kMeminfo);
  CHECK(machine.available() == 1000 * 1024);
  CHECK(machine.left().limit == "the machine (MemAvailable)");
}

// guarantee: control-group
TEST_CASE("The tightest control group of all ancestors is the limit") {
  Machine machine;
  machine.write("proc/meminfo", kMeminfo);
  machine.write("proc/self/cgroup", "0::/a/b\n");
  machine.write("cgroup/a/b/memory.max", "max\n");
  machine.write("cgroup/a/b/memory.current", "5\n");
  machine.write("cgroup/a/memory.max", "500000\n");
  machine.write("cgroup/a/memory.current", "100000\n");
  CHECK(machine.available() == 400'000);
  CHECK(machine.left().limit == "the memory limit of the control group (cgroup v2) /a, 500000 bytes,");
}

TEST_CASE("A control group over its limit has no memory left") {
  Machine machine;
  machine.write("proc/meminfo", kMeminfo);
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("cgroup/memory.max", "500\n");
  machine.write("cgroup/memory.current", "501\n");
  CHECK(machine.available() == 0);
}

// guarantee: control-group
TEST_CASE("Only the memory controller of cgroup v1 counts") {
  Machine machine;
  machine.write("proc/meminfo", kMeminfo);
  machine.write("proc/self/cgroup", "4:cpu:/x\n3:memory:/docker/1\n");
  machine.write("cgroup/memory/memory.limit_in_bytes", "700000\n");
  machine.write("cgroup/memory/memory.usage_in_bytes", "200000\n");
  machine.write("cgroup/cpu/x/memory.max", "1\n");
  CHECK(machine.available() == 500'000);
  CHECK(machine.left().limit == "the memory limit of the control group (cgroup v1) /, 700000 bytes,");
}

// guarantee: control-group
TEST_CASE("Page cache that was not used recently counts as free") {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("cgroup/memory.max", "100000000000\n");
  machine.write("cgroup/memory.current", "90000000000\n");
  const std::string dirty = "file_dirty 1000000000\nfile_writeback 2000000000\n";
  machine.write("cgroup/memory.stat", "active_file 9000000000\ninactive_file 50000000000\n" + dirty);
  const std::uint64_t cores = static_cast<std::uint64_t>(sysconf(_SC_NPROCESSORS_ONLN));
  CHECK(machine.available() == 57'000'000'000 - cores * (256 << 10));
}

// guarantee: control-group
TEST_CASE("memory.high is a limit below memory.max") {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/a\n");
  machine.write("cgroup/a/memory.max", "900000\n");
  machine.write("cgroup/a/memory.high", "500000\n");
  machine.write("cgroup/a/memory.current", "100000\n");
  CHECK(machine.available() == 400'000);
  CHECK(machine.left().limit == "memory.high of the control group (cgroup v2) /a, 500000 bytes,");
}

// guarantee: control-group
TEST_CASE("Swap counts toward the limit of memory and swap") {
  Machine machine;
  machine.write("proc/self/cgroup", "3:memory:/\n");
  machine.write("cgroup/memory/memory.limit_in_bytes", "700000\n");
  machine.write("cgroup/memory/memory.usage_in_bytes", "200000\n");
  machine.write("cgroup/memory/memory.memsw.limit_in_bytes", "700000\n");
  machine.write("cgroup/memory/memory.memsw.usage_in_bytes", "600000\n");
  CHECK(machine.available() == 100'000);
}

TEST_CASE("A machine without information has unlimited memory") {
  const Machine machine;
  CHECK(machine.available() == ~std::uint64_t{0});
}

TEST_CASE("This machine has memory left and a core to run on") {
  CHECK(available_memory_bytes() > 0);
  CHECK(usable_cores() >= 1);
}

TEST_CASE("never() does not pass and immediate() has passed") {
  CHECK_FALSE(Deadline::never().passed());
  CHECK(Deadline::immediate().passed());
  CHECK(Deadline::after_ns(-1).is_immediate());
  CHECK_FALSE(Deadline::after_ns(std::numeric_limits<std::int64_t>::max()).passed());
}

TEST_CASE("remaining_ns is at most the requested maximum") {
  CHECK(Deadline::never().remaining_ns(5) == 5);
  CHECK(Deadline::after_ns(3'600'000'000'000).remaining_ns(5) == 5);
}
