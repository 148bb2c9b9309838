// Measures the limits of the machine: copies into shared memory, and waking another process. Prints one JSON object.
//
//   limits copy touched|fresh <bytes> <seconds>     {"items_per_s", "cpu_us_per_item"}
//   limits latency futex|spin <gap seconds> <messages>   {"samples": [one way, us]}
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double now() {
  return seconds_of(CLOCK_MONOTONIC);
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void* map_shared(int fd, std::size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail("mmap");
  return address;
}

int make_shared_file(std::size_t size) {
  const int fd = memfd_create("limits", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) fail("memfd");
  return fd;
}

// Copies the same bytes again and again into the same shared memory, or each time into new shared memory.
void copy(bool fresh, std::size_t size, double wanted_seconds) {
  std::vector<char> source(size, 'x');
  int fd = make_shared_file(size);
  void* target = map_shared(fd, size);
  if (!fresh) std::memcpy(target, source.data(), size);
  long count = 0;
  double copying = 0, cpu = 0;
  const double began = now();
  while (copying < wanted_seconds && now() - began < 4 * wanted_seconds + 1) {
    if (fresh) {
      munmap(target, size);
      close(fd);
      fd = make_shared_file(size);
      target = map_shared(fd, size);
    }
    const double before = now(), cpu_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    const long repeats = fresh ? 1 : std::max<long>(1, 4'000'000 / static_cast<long>(size));
    for (long i = 0; i < repeats; ++i) {
      std::memcpy(target, source.data(), size);
      asm volatile("" : : "r"(target) : "memory");
    }
    copying += now() - before;
    cpu += seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
    count += repeats;
  }
  std::printf("{\"items_per_s\": %.6g, \"cpu_us_per_item\": %.6g}\n", static_cast<double>(count) / copying,
              cpu / static_cast<double>(count) * 1e6);
}

void wait_while(std::atomic<std::uint32_t>& word, std::uint32_t value, bool sleeping) {
  while (word.load(std::memory_order_acquire) == value) {
    if (sleeping) syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
  }
}

void publish(std::atomic<std::uint32_t>& word, std::uint32_t value, bool sleeping) {
  word.store(value, std::memory_order_release);
  if (sleeping) syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

struct Shared {
  alignas(64) std::atomic<std::uint32_t> there;
  alignas(64) std::atomic<std::uint32_t> back;
  alignas(64) double arrived;
};

// The other process records when it saw each message, and answers. The gaps let it fall asleep between messages.
void latency(bool sleeping, double gap, std::uint32_t messages) {
  auto* shared = new (map_shared(make_shared_file(4096), 4096)) Shared{};
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    for (std::uint32_t i = 0; i < messages; ++i) {
      wait_while(shared->there, i, sleeping);
      shared->arrived = now();
      publish(shared->back, i + 1, sleeping);
    }
    _exit(0);
  }
  std::printf("{\"samples\": [");
  for (std::uint32_t i = 0; i < messages; ++i) {
    if (gap > 0) {
      const timespec pause{0, static_cast<long>(gap * 1e9)};
      nanosleep(&pause, nullptr);
    }
    const double before = now();
    publish(shared->there, i + 1, sleeping);
    wait_while(shared->back, i, sleeping);
    const double one_way = gap > 0 ? shared->arrived - before : (now() - before) / 2;
    std::printf("%s%.3f", i ? ", " : "", one_way * 1e6);
  }
  std::printf("]}\n");
  waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string what = argv[1], how = argv[2];
  if (what == "copy") {
    copy(how == "fresh", std::strtoull(argv[3], nullptr, 10), std::atof(argv[4]));
  } else {
    latency(how == "futex", std::atof(argv[3]), static_cast<std::uint32_t>(std::atoi(argv[4])));
  }
}
