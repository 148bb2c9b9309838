#include "platform/memory_claim.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <limits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/checked_fd.h"
#include "platform/clock.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/memory_limits.h"
#include "platform/never_destroyed.h"
#include "platform/private_directory.h"
#include "platform/retry.h"

namespace shmtree::platform {
namespace {

// Programs need some memory to handle the error: an eighth of the limit, within these bounds. A child that is forked
// into a full group takes about 1 MiB of its own.
constexpr std::uint64_t kMinReserve = 4u << 20, kMaxReserve = 16u << 20;
constexpr std::uint64_t kMaxCredit = 1u << 20;
constexpr std::uint64_t kSharers = 256;  // a process that then stays idle keeps this part of the memory as credit
constexpr std::uint32_t kCreditLifeMs = 100;
constexpr std::uint64_t kCreditPage = 4096;

constexpr std::uint64_t kUnitBytes = 64u << 10;
constexpr unsigned kUnitBits = 24, kSlotBits = 17, kGroupBits = 22;
static_assert(kUnitBits + kSlotBits + kGroupBits == 63);  // offsets are signed
constexpr std::size_t kMaxGroups = 8;                     // claims in limits beyond are not announced

// The file of the claims. Opened once, since the first close() of it in a process ends all locks of the process.
class ClaimsFile {
 public:
  // Returns the descriptor; -1 if there is no such file.
  int get() noexcept {
    const std::lock_guard guard(mutex_);
    struct stat status {};
    const bool is_good = fd_.is_ours() && fstat(fd_.number(), &status) == 0 && status.st_nlink != 0;
    if (!is_good) fd_ = CheckedFd(open());
    return fd_.number();
  }

 private:
  static UniqueFd open() noexcept try {
    for (const std::string& path : private_directories("shmtree")) {
      auto folder = open_private_directory(path, IfMissing::kCreate);
      auto file = folder ? open_hidden_file(folder->get(), ".claims") : std::move(folder);
      if (file) return std::move(*file);
    }
    return {};
  } catch (const std::bad_alloc&) {
    return {};
  }

  ForkSafeMutex mutex_;
  CheckedFd fd_;
};

bool set_lock(int fd, short type, std::uint64_t from, std::uint64_t units) noexcept {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(from);
  lock.l_len = static_cast<off_t>(units);
  return units == 0 || retry([&] { return fcntl(fd, F_SETLK, &lock); }) == 0;
}

// Returns how many units other processes have locked in [from, to).
std::uint64_t units_of_others(int fd, std::uint64_t from, std::uint64_t to) noexcept {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(from);
  lock.l_len = static_cast<off_t>(to - from);
  if (from == to || fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  const std::uint64_t begin = std::max(static_cast<std::uint64_t>(lock.l_start), from);
  const std::uint64_t end = lock.l_len == 0 ? to : std::min(static_cast<std::uint64_t>(lock.l_start + lock.l_len), to);
  return end - begin + units_of_others(fd, from, begin) + units_of_others(fd, end, to);
}

std::uint64_t units(std::uint64_t bytes) noexcept {
  return std::min((bytes + kUnitBytes - 1) / kUnitBytes, (std::uint64_t{1} << kUnitBits) - 1);
}

// Where the claims of a control group are in the file.
std::uint64_t range_of(const MemoryLimit& limit) noexcept {
  const std::uint64_t group = limit.id == 0 ? 0 : 1 + limit.id % ((std::uint64_t{1} << kGroupBits) - 1);
  return group << (kSlotBits + kUnitBits);
}

// One claim of this process.
struct Claim {
  std::atomic<std::uint64_t> units{0};
  std::uint64_t slot = 0;
  std::uint64_t ranges[kMaxGroups] = {};  // of the limits
  std::size_t range_count = 0;
};

// The claims of this process that are not over: its process id and a bit for each. A child finds another process id.
constexpr unsigned kClaims = 32;
constinit Claim g_claims[kClaims];
constinit std::atomic<std::uint64_t> g_taken{0};

// A claim from which small commits take, as a word that is changed as a whole. It is replaced only while no commit uses
// it, so its claim outlasts all these commits.
struct CreditWord {
  std::uint8_t claim;  // index + 1; 0: none
  std::uint8_t users;
  std::uint16_t pages;
  std::uint32_t ends_ms;
};
constexpr std::uint8_t kMaxUsers = 255;
static_assert(kMaxCredit / kCreditPage <= 65535);
constinit std::atomic<std::uint64_t> g_credit{0};

std::uint64_t taken_by(std::uint64_t pid) noexcept {
  const std::uint64_t word = g_taken.load();
  return word >> 32 == pid ? word & 0xffffffffu : 0;
}

// Returns the index of a free claim. Waits while other threads use all.
int take_claim() noexcept {
  const auto pid = static_cast<std::uint64_t>(process_id());
  for (;;) {
    std::uint64_t word = g_taken.load();
    if (word >> 32 != pid) g_credit.store(0);  // that of the parent
    const std::uint64_t taken = word >> 32 == pid ? word & 0xffffffffu : 0;
    const int index = std::countr_one(taken);
    if (index == kClaims) {
      yield_core();
    } else if (g_taken.compare_exchange_weak(word, pid << 32 | taken | std::uint64_t{1} << index)) {
      return index;
    }
  }
}

void lower(int index, std::uint64_t to) noexcept {
  Claim& claim = g_claims[index];
  const std::uint64_t from = claim.units.load();
  if (to >= from) return;
  if (const int fd = never_destroyed<ClaimsFile>().get(); fd >= 0) {
    for (std::size_t i = 0; i < claim.range_count; ++i)
      set_lock(fd, F_UNLCK, claim.ranges[i] + claim.slot + to, from - to);
  }
  claim.units.store(to);
}

void end_claim(int index) noexcept {
  lower(index, 0);
  g_taken.fetch_and(~(std::uint64_t{1} << index));
}

void announce(int index, const std::vector<MemoryLimit>& limits, std::uint64_t bytes) noexcept {
  Claim& claim = g_claims[index];
  claim.range_count = 0;
  for (const MemoryLimit& limit : limits) {
    std::uint64_t* const end = claim.ranges + claim.range_count;
    const std::uint64_t range = range_of(limit);
    if (claim.range_count < kMaxGroups && std::find(claim.ranges, end, range) == end)
      claim.ranges[claim.range_count++] = range;
  }
  claim.units.store(units(bytes));
  const int fd = never_destroyed<ClaimsFile>().get();
  if (fd < 0) return;
  // Another process has the slot if the machine's range, the first, cannot be locked there.
  auto hash = static_cast<std::uint32_t>(process_id()) * kClaims + static_cast<std::uint32_t>(index);
  for (int attempt = 0; attempt < 100; ++attempt, ++hash) {
    claim.slot = std::uint64_t{hash * 0x9e3779b1u >> (32 - kSlotBits)} << kUnitBits;
    if (set_lock(fd, F_WRLCK, claim.ranges[0] + claim.slot, units(bytes))) break;
  }
  for (std::size_t i = 1; i < claim.range_count; ++i) set_lock(fd, F_WRLCK, claim.ranges[i] + claim.slot, units(bytes));
}

// Returns the units of this process's claims but `index`, wherever they are.
std::uint64_t other_units_of_process(int index) noexcept {
  std::uint64_t sum = 0;
  for (std::uint64_t taken = taken_by(static_cast<std::uint64_t>(process_id())); taken != 0; taken &= taken - 1) {
    if (const int other = std::countr_zero(taken); other != index) sum += g_claims[other].units.load();
  }
  return sum;
}

// Bytes that the limits leave beside the reserve: to all claims, and to one claim beside the others.
struct Free {
  std::uint64_t to_all = std::numeric_limits<std::uint64_t>::max(), to_one = to_all;
  MemoryLimit limit;                    // the tightest
  std::uint64_t left = 0, claimed = 0;  // of that limit
};

// Adds up the claims before it reads the memory left, so that it counts what is committed meanwhile.
Free free_beside(int index, std::vector<MemoryLimit> limits) {
  Free least;
  const int fd = never_destroyed<ClaimsFile>().get();
  const std::uint64_t own = other_units_of_process(index);
  for (MemoryLimit& limit : limits) {
    const std::uint64_t range = range_of(limit);
    const std::uint64_t others =
        fd < 0 ? 0 : units_of_others(fd, range, range + (std::uint64_t{1} << (kSlotBits + kUnitBits)) - 1);
    const std::uint64_t claimed = (own + others) * kUnitBytes;
    const std::uint64_t left = bytes_left(limit);
    // The page tables of eight processes that map all memory of the group take a 64th of it.
    const std::uint64_t reserve =
        std::max({left / 20, std::clamp(limit.bytes / 8, kMinReserve, kMaxReserve), limit.bytes / 64});
    const std::uint64_t to_all = left - std::min(left, reserve), to_one = to_all - std::min(to_all, claimed);
    least.to_all = std::min(least.to_all, to_all);
    if (to_one < least.to_one) {
      least.to_one = to_one;
      least.limit = std::move(limit);
      least.left = left;
      least.claimed = claimed;
    }
  }
  return least;
}

std::vector<MemoryLimit> own_limits() {
  return memory_limits(proc_root, cgroup_root);
}

std::uint32_t now_ms() noexcept {
  return static_cast<std::uint32_t>(coarse_monotonic_ns() / 1'000'000);
}

// Replaces the credit that `change` accepts. Returns true, with the old one in `old`, if it accepted.
template <class Change>
bool change_credit(const Change& change, CreditWord& old) noexcept {
  std::uint64_t word = g_credit.load();
  for (;;) {
    old = std::bit_cast<CreditWord>(word);
    CreditWord next = old;
    if (!change(next)) return false;
    if (g_credit.compare_exchange_weak(word, std::bit_cast<std::uint64_t>(next))) return true;
  }
}

bool take_credit(std::uint64_t bytes) noexcept {
  const std::uint64_t pages = (bytes + kCreditPage - 1) / kCreditPage;
  const std::uint64_t taken = taken_by(static_cast<std::uint64_t>(process_id()));
  const std::uint32_t now = now_ms();
  CreditWord old;
  return change_credit(
      [&](CreditWord& credit) {
        if (credit.claim == 0 || (taken >> (credit.claim - 1) & 1) == 0 || credit.pages < pages) return false;
        if (static_cast<std::uint32_t>(credit.ends_ms - now) > kCreditLifeMs || credit.users == kMaxUsers) return false;
        credit.pages = static_cast<std::uint16_t>(credit.pages - pages);
        ++credit.users;
        return true;
      },
      old);
}

void return_credit() noexcept {
  CreditWord old;
  change_credit([](CreditWord& credit) { return credit.users != 0 && (--credit.users, true); }, old);
}

// Makes the claim `index` the credit, if no commit uses the present one; -1: no claim.
bool set_credit(int index, std::uint64_t bytes) noexcept {
  CreditWord old;
  const bool is_set = change_credit(
      [&](CreditWord& credit) {
        if (credit.users != 0) return false;
        credit.claim = static_cast<std::uint8_t>(index + 1);
        credit.pages = static_cast<std::uint16_t>(bytes / kCreditPage);
        credit.ends_ms = now_ms() + kCreditLifeMs;
        return true;
      },
      old);
  if (is_set && old.claim != 0) end_claim(old.claim - 1);
  return is_set;
}

}  // namespace

MemoryClaim::MemoryClaim(std::uint64_t bytes, Credit credit) noexcept : bytes_(bytes) {
  on_credit_ = credit == Credit::kShared && take_credit(bytes);
  if (on_credit_) return;
  slot_ = take_claim();
  try {
    const auto limits = own_limits();
    credit_ = credit == Credit::kShared ? kMaxCredit : 0;
    announce(slot_, limits, bytes + credit_);
    const Free free = free_beside(slot_, limits);
    if (bytes <= free.to_one) {
      credit_ = std::min(credit_, (free.to_one - bytes) / kSharers / kUnitBytes * kUnitBytes);
      lower(slot_, units(bytes + credit_));
      return;
    }
    answer_ = bytes <= free.to_all ? Answer::kContended : Answer::kTooLittle;
  } catch (const std::bad_alloc&) {
    answer_ = Answer::kTooLittle;
  }
  end_claim(std::exchange(slot_, -1));
  set_credit(-1, 0);
}

MemoryClaim::~MemoryClaim() {
  if (on_credit_) return_credit();
  if (slot_ < 0) return;
  if (credit_ != 0) {
    lower(slot_, units(credit_));
    if (set_credit(slot_, credit_)) return;
  }
  end_claim(slot_);
}

void MemoryClaim::committed(std::uint64_t bytes) noexcept {
  bytes_ -= std::min(bytes_, bytes);
  if (slot_ >= 0) lower(slot_, units(bytes_ + credit_));
}

bool MemoryClaim::still_fits() const noexcept try {
  return bytes_ <= free_beside(slot_, own_limits()).to_all;
} catch (const std::bad_alloc&) {
  return false;
}

bool has_memory_for(std::uint64_t bytes) {
  return bytes <= free_beside(-1, own_limits()).to_all;
}

std::string memory_shortage(std::uint64_t bytes) {
  const Free free = free_beside(-1, own_limits());
  if (bytes <= free.to_one) return {};
  const std::string claimed =
      free.claimed == 0 ? "" : ", less the " + std::to_string(free.claimed) + " bytes that processes are about to use";
  return describe(free.limit) + " leaves " + std::to_string(free.left) + " bytes" + claimed + ", too few for " +
         std::to_string(bytes) + " bytes more and a reserve for the programs themselves";
}

}  // namespace shmtree::platform
