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
#include <mutex>
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

// Cache of open descriptors of other processes' pipes, by sender. Makes no system call under the mutex: the cache does
// not close a descriptor while a thread uses it.
class KnownPipes {
 public:
  bool send(const Key& key, std::string_view text, WakeRequest request) noexcept {
    Pipe* const pipe = begin_use(key);
    if (pipe != nullptr && pipe->fd.is_ours()) {
      const bool sent = write_to(pipe->fd.number(), text, request);
      end_use(pipe);
      return sent;
    }
    if (pipe != nullptr) forget(pipe);  // the program has closed it
    if (was_missed(key)) return false;
    UniqueFd opened = open_at(key);
    if (!opened.valid()) {
      if (!is_shortage(errno)) note_missed(key);
      return false;
    }
    const bool sent = write_to(opened.get(), text, request);
    keep(key, std::move(opened));
    return sent;
  }
  void close_all_of(const WakeSender* sender) noexcept {
    for (Set& set : sets_) {
      for (Pipe& pipe : set.pipes) {
        CheckedFd closed;  // closed after the mutex is released
        const std::lock_guard guard(mutex_);
        if (pipe.key.sender == sender && pipe.is_taken()) closed = take_out(pipe);
      }
    }
  }

 private:
  static constexpr std::size_t kSets = 64, kWays = 4;
  static constexpr std::int64_t kRetryNs = 100'000'000;
  struct Pipe {
    Key key;
    std::uint32_t uses = 0;  // threads that write to it; only the last one may close it
    bool is_forgotten = false;
    CheckedFd fd;
    bool is_taken() const noexcept { return key.address != 0; }
    bool is_at(const Key& other) const noexcept { return key == other && !is_forgotten; }
  };
  struct Miss {
    Key key;
    std::int64_t next_try_ns = 0;
  };
  struct Set {
    std::array<Pipe, kWays> pipes;
    std::array<Miss, kWays> misses;  // pipes that could not be opened
    std::size_t oldest = 0, oldest_miss = 0;
  };

  Set& set_of(const Key& key) noexcept {
    return sets_[(id_of(key.address) ^ static_cast<std::uint32_t>(key.pid)) % kSets];
  }
  // Returns null if that pipe is not known.
  Pipe* begin_use(const Key& key) noexcept {
    const std::lock_guard guard(mutex_);
    for (Pipe& pipe : set_of(key).pipes) {
      if (!pipe.is_at(key)) continue;
      ++pipe.uses;
      return &pipe;
    }
    return nullptr;
  }
  void end_use(Pipe* pipe) noexcept {
    CheckedFd closed;
    const std::lock_guard guard(mutex_);
    if (--pipe->uses == 0 && pipe->is_forgotten) closed = take_out(*pipe);
  }
  void forget(Pipe* pipe) noexcept {
    {
      const std::lock_guard guard(mutex_);
      pipe->is_forgotten = true;
    }
    end_use(pipe);
  }
  CheckedFd take_out(Pipe& pipe) noexcept {
    --open_count_;
    pipe.key = {};
    pipe.is_forgotten = false;
    return std::move(pipe.fd);
  }
  bool was_missed(const Key& key) noexcept {
    const std::int64_t now = monotonic_ns();
    const std::lock_guard guard(mutex_);
    return std::ranges::any_of(set_of(key).misses,
                               [&](const Miss& miss) { return miss.key == key && now < miss.next_try_ns; });
  }
  void note_missed(const Key& key) noexcept {
    const std::int64_t next_try_ns = monotonic_ns() + kRetryNs;
    const std::lock_guard guard(mutex_);
    Set& set = set_of(key);
    set.misses[set.oldest_miss++ % kWays] = {key, next_try_ns};
  }
  // Returns the limit of open descriptors: an eighth of RLIMIT_NOFILE, or the size of the cache.
  static std::size_t max_open() noexcept {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    return std::min<rlim_t>(limit.rlim_cur / 8, kSets * kWays);
  }
  // Stores the pipe in a free entry, or replaces the oldest entry that no thread uses. Otherwise closes it.
  void keep(const Key& key, UniqueFd opened) noexcept {
    CheckedFd fd(std::move(opened)), replaced;  // closed after the mutex is released
    const std::size_t max = max_open();
    const std::lock_guard guard(mutex_);
    Set& set = set_of(key);
    Pipe* place = nullptr;
    for (std::size_t i = 0; i < kWays; ++i) {
      Pipe& pipe = set.pipes[(set.oldest + i) % kWays];
      if (pipe.is_at(key)) return;  // another thread was faster
      const bool is_better = place == nullptr || (place->is_taken() && !pipe.is_taken());
      if (pipe.uses == 0 && is_better) place = &pipe;
    }
    if (place == nullptr) return;
    if (place->is_taken()) {
      replaced = take_out(*place);
      ++set.oldest;
    }
    if (open_count_ >= max) return;
    place->key = key;
    place->fd = std::move(fd);
    ++open_count_;
  }

  ForkSafeMutex mutex_;
  std::array<Set, kSets> sets_;
  std::size_t open_count_ = 0;
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
