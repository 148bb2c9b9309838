// Claims of memory, within fake control groups of 100 MiB. Only these groups limit the claims: no test takes memory.
#include "platform/memory_claim.h"

#include <string>

#include "platform/memory_limits.h"
#include "support/catch2.h"
#include "support/fake_machine.h"
#include "support/process.h"

using namespace shmtree::platform;
using shmtree::test::Child;
using shmtree::test::Gate;
using shmtree::test::Machine;
using Answer = MemoryClaim::Answer;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kFree = 100 * kMiB - 100 * kMiB / 8;  // of an unused group, beside the reserve

// Makes this process a member of the control group `group` of 100 MiB while the object exists.
class Group {
 public:
  Group() {
    limit("/group");
    enter("/group");
  }
  ~Group() { proc_root = "/proc", cgroup_root = "/sys/fs/cgroup"; }
  void limit(const std::string& group) {
    machine_.write("cgroup" + group + "/memory.max", std::to_string(100 * kMiB));
    use(group, 0);
  }
  void use(const std::string& group, std::uint64_t bytes) {
    machine_.write("cgroup" + group + "/memory.current", std::to_string(bytes));
  }
  void enter(const std::string& group) {
    machine_.write("proc/self/cgroup", "0::" + group + "\n");
    proc_ = machine_.proc(), cgroup_ = machine_.cgroup();
    proc_root = proc_.c_str(), cgroup_root = cgroup_.c_str();
  }

 private:
  Machine machine_;
  std::string proc_, cgroup_;
};

Answer answer_to(std::uint64_t bytes, MemoryClaim::Credit credit = MemoryClaim::Credit::kNone) {
  return MemoryClaim(bytes, credit).answer();
}

// A process that holds a claim until it is killed.
class Claimant {
 public:
  explicit Claimant(std::uint64_t bytes, std::uint64_t committed = 0)
      : child_([&] {
          MemoryClaim claim(bytes, MemoryClaim::Credit::kNone);
          claim.committed(committed);
          has_claimed_.open(claim.answer() == Answer::kFits);
          for (;;) pause();
          return true;
        }) {
    REQUIRE(has_claimed_.wait() == 1);
  }
  Child& process() { return child_; }

 private:
  Gate has_claimed_;
  Child child_;
};

}  // namespace

// guarantee: control-group
TEST_CASE("A claim counts the claims of other processes") {
  const Group group;
  Claimant a(30 * kMiB), b(30 * kMiB);
  CHECK(answer_to(25 * kMiB) == Answer::kFits);
  CHECK(answer_to(40 * kMiB) == Answer::kContended);
  CHECK(answer_to(96 * kMiB) == Answer::kTooLittle);
  CHECK(memory_shortage(25 * kMiB).empty());
  CHECK(memory_shortage(40 * kMiB).find("62914560 bytes that processes are about to use") != std::string::npos);
}

// guarantee: control-group
TEST_CASE("A killed process leaves no claim") {
  const Group group;
  Claimant other(60 * kMiB);
  other.process().kill_and_wait();
  CHECK(answer_to(80 * kMiB) == Answer::kFits);
}

// guarantee: control-group
TEST_CASE("A stopped process keeps its claim and delays none") {
  const Group group;
  Claimant other(60 * kMiB);
  other.process().signal(SIGSTOP);
  other.process().wait_until_stopped();
  CHECK(answer_to(25 * kMiB) == Answer::kFits);
  CHECK(answer_to(60 * kMiB) == Answer::kContended);
}

TEST_CASE("Claims of one process count for each other") {
  const Group group;
  const MemoryClaim first(60 * kMiB, MemoryClaim::Credit::kNone);
  CHECK(answer_to(60 * kMiB) == Answer::kContended);
  CHECK(answer_to(25 * kMiB) == Answer::kFits);
}

TEST_CASE("Committed bytes no longer count as claimed") {
  const Group group;
  Claimant other(60 * kMiB, 40 * kMiB);
  CHECK(answer_to(65 * kMiB) == Answer::kFits);
  CHECK(answer_to(80 * kMiB) == Answer::kContended);
}

TEST_CASE("A forked child has none of its parent's claims") {
  const Group group;
  const MemoryClaim parent(60 * kMiB, MemoryClaim::Credit::kNone);
  Child child([] { return answer_to(25 * kMiB) == Answer::kFits && answer_to(60 * kMiB) == Answer::kContended; });
  CHECK(child.succeeded());
  Child next([] { return answer_to(60 * kMiB) == Answer::kContended; });
  CHECK(next.succeeded());
}

TEST_CASE("Claims in sibling groups count in their common parent") {
  Group group;
  group.limit("/group/a");
  group.enter("/group/a");
  Claimant other(60 * kMiB);
  group.enter("/group/b");
  CHECK(answer_to(25 * kMiB) == Answer::kFits);
  CHECK(answer_to(60 * kMiB) == Answer::kContended);
}

TEST_CASE("Claims in another control group do not count") {
  Group group;
  group.limit("/other");
  Claimant other(60 * kMiB);
  group.enter("/other");
  CHECK(answer_to(60 * kMiB) == Answer::kFits);
}

TEST_CASE("A claim stops fitting when programs take the memory") {
  Group group;
  MemoryClaim claim(60 * kMiB, MemoryClaim::Credit::kNone);
  REQUIRE(claim.answer() == Answer::kFits);
  claim.committed(20 * kMiB);
  group.use("/group", 40 * kMiB);
  CHECK(claim.still_fits());
  group.use("/group", 60 * kMiB);
  CHECK_FALSE(claim.still_fits());
}

TEST_CASE("Credit for small commits is claimed until too little is left") {
  Group group;
  // In a child: it has no credit of an earlier test.
  Child child([&] {
    if (answer_to(4096, MemoryClaim::Credit::kShared) != Answer::kFits) return false;
    Child other([] { return answer_to(kFree) == Answer::kContended && answer_to(kFree - kMiB) == Answer::kFits; });
    if (!other.succeeded() || answer_to(96 * kMiB) != Answer::kTooLittle) return false;
    Child after([] { return answer_to(kFree) == Answer::kFits; });
    return after.succeeded();
  });
  CHECK(child.succeeded());
}
