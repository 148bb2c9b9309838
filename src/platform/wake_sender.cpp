#include "platform/wake_sender.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "platform/clock.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/retry.h"
#include "platform/wake_socket_name.h"

namespace shmtree::platform {
namespace {

struct ProcPath {
  char text[48];
  ProcPath(int pid, int number) noexcept { std::snprintf(text, sizeof text, "/proc/%d/fd/%d", pid, number); }
  explicit ProcPath(int own) noexcept { std::snprintf(text, sizeof text, "/proc/self/fd/%d", own); }
};

// Reads the link of a descriptor in /proc, which needs no call of the target's file system: "pipe:[INODE]" for an
// anonymous pipe, and for a file a path, which begins with "/" or "(".
bool leads_to_pipe(const ProcPath& link, std::uint32_t inode) noexcept {
  constexpr std::string_view kBegin("pipe:[");
  char target[64];
  const ssize_t length = readlink(link.text, target, sizeof target - 1);
  if (length < 0) return false;
  target[length] = 0;
  errno = ENXIO;
  if (std::strncmp(target, kBegin.data(), kBegin.size()) != 0) return false;
  return static_cast<std::uint32_t>(std::strtoull(target + kBegin.size(), nullptr, 10)) == inode;
}

// The mode of the link tells how the descriptor was opened.
bool reads_and_writes(const ProcPath& link) noexcept {
  struct stat status {};
  if (lstat(link.text, &status) != 0) return false;
  errno = ENXIO;
  return (status.st_mode & (S_IRUSR | S_IWUSR)) == (S_IRUSR | S_IWUSR);
}

// Opens the pipe at that address. On failure errno says why; ENXIO: the descriptor is no such pipe. An O_PATH
// descriptor does not open the file itself, and refers to the same file even if the listener's descriptors change.
UniqueFd open_pipe(int pid, WakeAddress address) noexcept {
  const ProcPath link(pid, static_cast<int>(number_of(address)));
  if (!reads_and_writes(link)) return {};
  const UniqueFd found(open(link.text, O_PATH | O_CLOEXEC));
  if (!found.valid()) return {};
  const ProcPath same(found.get());
  if (!leads_to_pipe(same, id_of(address))) return {};
  return UniqueFd(open(same.text, O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

UniqueFd connect_socket(WakeAddress address) noexcept {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const WakeSocketName name(id_of(address));
  if (!fd.valid() || connect(fd.get(), name.get(), name.size()) != 0) return {};
  return fd;
}

// True if the sending process lacked a resource that it may have at the next wake-up.
bool is_shortage(int failure) noexcept {
  return failure == EMFILE || failure == ENFILE || failure == ENOMEM || failure == EINTR;
}

struct Key {
  const WakeSender* sender = nullptr;
  int pid = 0;
  WakeAddress address = 0;  // 0: the entry is free
  bool operator==(const Key&) const noexcept = default;
};

UniqueFd open_at(const Key& key) noexcept {
  return number_of(key.address) == kSocketNumber ? connect_socket(key.address) : open_pipe(key.pid, key.address);
}

bool write_to(int number, std::string_view text, WakeRequest request) noexcept {
  if (request.take != nullptr && !request.take(request.context)) return true;
  const ssize_t written = retry([&] { return write(number, text.data(), text.size()); });
  return written >= 0 || errno == EAGAIN;
}

// Cache of open descriptors of other processes' pipes, and of pipes that could not be opened, by sender. Makes no
// system call under the mutex. A descriptor that is replaced is closed once no thread uses it.
class KnownPipes {
 public:
  bool send(const Key& key, std::string_view text, WakeRequest request) noexcept {
    const Known known = find(key);
    if (known.pipe != nullptr && known.pipe->is_ours()) return write_to(known.pipe->number(), text, request);
    if (known.next_try_ns != 0 && monotonic_ns() < known.next_try_ns) return false;
    UniqueFd opened = open_at(key);
    if (!opened.valid()) {
      if (!is_shortage(errno)) keep(key, {.next_try_ns = monotonic_ns() + kRetryNs});
      return false;
    }
    const bool sent = write_to(opened.get(), text, request);
    try {
      keep(key, {.pipe = std::make_shared<const CheckedFd>(std::move(opened))});
    } catch (const std::bad_alloc&) {
      return sent;  // the next call opens the pipe again
    }
    return sent;
  }
  void close_all_of(const WakeSender* sender) noexcept {
    for (Entry& entry : entries_) {
      Known closed;  // released after the mutex
      const std::lock_guard guard(mutex_);
      if (entry.key.sender == sender) closed = take_out(entry);
    }
  }

 private:
  static constexpr std::size_t kSets = 32, kWays = 8;
  static constexpr std::int64_t kRetryNs = 100'000'000;
  struct Known {
    std::shared_ptr<const CheckedFd> pipe{};  // null: not open
    std::int64_t next_try_ns = 0;             // if it could not be opened
  };
  struct Entry {
    Key key;
    Known known;
  };

  std::span<Entry> set_of(const Key& key) noexcept {
    const std::size_t set = (id_of(key.address) ^ static_cast<std::uint32_t>(key.pid)) % kSets;
    return std::span(entries_).subspan(set * kWays, kWays);
  }
  Known find(const Key& key) noexcept {
    const std::lock_guard guard(mutex_);
    for (const Entry& entry : set_of(key)) {
      if (entry.key == key) return entry.known;
    }
    return {};
  }
  // Under the mutex.
  Known take_out(Entry& entry) noexcept {
    if (entry.known.pipe != nullptr) --open_count_;
    entry.key = {};
    return std::exchange(entry.known, {});
  }
  // Returns the limit of open descriptors: an eighth of RLIMIT_NOFILE, or the size of the cache.
  static std::size_t max_open() noexcept {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    return std::min<rlim_t>(limit.rlim_cur / 8, kSets * kWays);
  }
  // Replaces the entry of that key, else a free one, else the oldest of a pipe that could not be opened. Only an open
  // pipe replaces another one.
  void keep(const Key& key, Known known) noexcept {
    const std::size_t max = max_open();
    Known replaced;  // released after the mutex
    const std::lock_guard guard(mutex_);
    const std::span<Entry> set = set_of(key);
    auto place = std::ranges::find(set, key, &Entry::key);
    if (place == set.end()) {
      place = std::ranges::min_element(set, {}, [](const Entry& each) {
        return each.known.pipe ? std::numeric_limits<std::int64_t>::max() : each.known.next_try_ns;
      });
      if (place->known.pipe && !known.pipe) return;
      if (place->known.pipe) place = set.begin() + static_cast<std::ptrdiff_t>(next_++ % kWays);
    }
    replaced = take_out(*place);
    if (known.pipe != nullptr && open_count_ >= max) return;
    if (known.pipe != nullptr) ++open_count_;
    *place = {key, std::move(known)};
  }

  ForkSafeMutex mutex_;
  std::array<Entry, kSets * kWays> entries_{};
  std::size_t open_count_ = 0, next_ = 0;
};

}  // namespace

WakeSender::~WakeSender() {
  never_destroyed<KnownPipes>().close_all_of(this);
}

bool WakeSender::send(int pid, WakeAddress address, std::string_view text, WakeRequest request) const noexcept {
  address &= kWakeAddressMask;
  if (address == 0) return false;
  const int saved = errno;
  bool sent = false;
  if (pid == process_id() && number_of(address) != kSocketNumber) {
    sent = WakePipe::is_own(address) && write_to(static_cast<int>(number_of(address)), text, request);
  } else {
    sent = never_destroyed<KnownPipes>().send({this, pid, address}, text, request);
  }
  errno = saved;
  return sent;
}

}  // namespace shmtree::platform
