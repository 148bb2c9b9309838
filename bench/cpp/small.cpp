// Small messages between two processes, each on a core of its own: 8 bytes, 1 KB, and a dict of five scalars. Rows of a
// ring that spins and a ring that sleeps show what the machine allows. Other rows are a pipe, Boost.Interprocess and
// ZeroMQ. `bench_cpp --benchmark_filter=small` prints all rows in one run.
#include <limits.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "between.h"
#include "platform/atomics.h"
#include "samples.h"
#include "transports.h"

#ifdef SHMTREE_BENCH_BOOST
#include <boost/interprocess/ipc/message_queue.hpp>
#endif
#ifdef SHMTREE_BENCH_ZEROMQ
#include <zmq.h>
#endif

namespace shmtree::bench {
namespace {

template <std::size_t kBytes>
struct Words {
  std::uint64_t number[kBytes / 8];
  static Words of(std::uint64_t number) noexcept {
    Words words;
    std::fill(std::begin(words.number), std::end(words.number), number);
    return words;
  }
  std::uint64_t checked() const {
    require(number[0] == number[kBytes / 8 - 1], "a torn payload");
    return number[0];
  }
};

// Public API: the bytes of a struct, copied at both ends.
template <std::size_t kBytes>
class SmallTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) {
    const auto words = Words<kBytes>::of(number);
    pair_.first.put_bytes(std::as_bytes(std::span(words.number))).value();
  }
  std::uint64_t receive() {
    return next([](const Receiver& receiver, Timeout timeout) { return receiver.get_struct<Words<kBytes>>(timeout); })
        .checked();
  }
};

// Public API: a dict of five scalars, which the receiver reads by keys.
class DictTransport : public ValueTransport {
 public:
  using ValueTransport::ValueTransport;
  void send(std::uint64_t number) {
    pair_.first.put(Dict{{"reward", 1.0}, {"action", 3}, {"terminated", false}, {"step", number}, {"episode", "ep-12"}})
        .value();
  }
  std::uint64_t receive() { return receive_item()["step"].as<std::uint64_t>(); }
};

// A ring of one sender and one receiver. Each keeps a copy of the other's position. Nothing notices a process that
// dies.
template <std::size_t kBytes, bool kSleeps>
class RingTransport {
 public:
  void send(std::uint64_t number) {
    const std::uint32_t tail = ring_->tail.load(std::memory_order_relaxed);
    wait_until(ring_->head, known_head_, [&] { return tail - known_head_ < kCapacity; });
    ring_->slots[tail % kCapacity] = Words<kBytes>::of(number);
    publish(ring_->tail, tail + 1);
  }
  std::uint64_t receive() {
    const std::uint32_t head = ring_->head.load(std::memory_order_relaxed);
    wait_until(ring_->tail, known_tail_, [&] { return known_tail_ != head; });
    const std::uint64_t number = ring_->slots[head % kCapacity].checked();
    publish(ring_->head, head + 1);
    return number;
  }

 private:
  template <class Holds>
  void wait_until(std::atomic<std::uint32_t>& position, std::uint32_t& known, Holds holds) {
    for (; !holds(); known = position.load(std::memory_order_acquire)) {
      if (!kSleeps) {
        platform::relax_cpu();
        continue;
      }
      ring_->sleeps.store(true);
      if (position.load() == known) platform::futex_wait(position, known, 1'000'000'000);
    }
  }
  void publish(std::atomic<std::uint32_t>& position, std::uint32_t value) {
    if (!kSleeps) return position.store(value, std::memory_order_release);
    position.store(value);
    if (ring_->sleeps.load() && ring_->sleeps.exchange(false)) platform::futex_wake(position, INT_MAX);
  }

  struct Ring {
    alignas(128) std::atomic<std::uint32_t> tail{0};
    alignas(128) std::atomic<std::uint32_t> head{0};
    alignas(128) std::atomic<bool> sleeps{false};
    alignas(128) Words<kBytes> slots[kCapacity];
  };
  Shared<Ring> ring_;
  std::uint32_t known_head_ = 0, known_tail_ = 0;  // of the process that uses them
};

template <std::size_t kBytes>
class PipeTransport {
 public:
  PipeTransport() { require(pipe(ends_) == 0, "pipe"); }
  void send(std::uint64_t number) {
    const auto words = Words<kBytes>::of(number);
    require(write(ends_[1], &words, kBytes) == kBytes, "write");
  }
  std::uint64_t receive() {
    Words<kBytes> words;
    for (std::size_t got = 0; got < kBytes;) {
      const ssize_t count = read(ends_[0], reinterpret_cast<char*>(&words) + got, kBytes - got);
      require(count > 0, "read");
      got += static_cast<std::size_t>(count);
    }
    return words.checked();
  }
  ~PipeTransport() { close(ends_[0]), close(ends_[1]); }
  PipeTransport(const PipeTransport&) = delete;
  PipeTransport& operator=(const PipeTransport&) = delete;

 private:
  int ends_[2];
};

// Gives each object that has a name in the system its own.
[[maybe_unused]] std::string new_name() {
  static int made = 0;
  return "shmtree-bench-" + std::to_string(getpid()) + "-" + std::to_string(++made);
}

#ifdef SHMTREE_BENCH_BOOST
template <std::size_t kBytes>
class BoostTransport {
  using Queue = boost::interprocess::message_queue;

 public:
  ~BoostTransport() { Queue::remove(name_.c_str()); }
  void send(std::uint64_t number) {
    const auto words = Words<kBytes>::of(number);
    queue_.send(&words, kBytes, 0);
  }
  std::uint64_t receive() {
    Words<kBytes> words;
    Queue::size_type size = 0;
    unsigned priority = 0;
    queue_.receive(&words, kBytes, size, priority);
    require(size == kBytes, "a payload of another size");
    return words.checked();
  }

 private:
  const std::string name_ = new_name();
  Queue queue_{boost::interprocess::create_only, name_.c_str(), kCapacity, kBytes};
};
#endif

#ifdef SHMTREE_BENCH_ZEROMQ
template <std::size_t kBytes>
class ZeroMqTransport {
 public:
  // Each process makes its own context, since those do not survive a fork.
  void join(bool sends) {
    context_ = zmq_ctx_new();
    socket_ = zmq_socket(context_, sends ? ZMQ_PUSH : ZMQ_PULL);
    const int most = kCapacity;
    zmq_setsockopt(socket_, sends ? ZMQ_SNDHWM : ZMQ_RCVHWM, &most, sizeof most);
    require((sends ? zmq_connect(socket_, address_.c_str()) : zmq_bind(socket_, address_.c_str())) == 0, "zmq");
  }
  void send(std::uint64_t number) {
    const auto words = Words<kBytes>::of(number);
    require(zmq_send(socket_, &words, kBytes, 0) == kBytes, "zmq_send");
  }
  std::uint64_t receive() {
    Words<kBytes> words;
    require(zmq_recv(socket_, &words, kBytes, 0) == kBytes, "zmq_recv");
    return words.checked();
  }

 private:
  const std::string address_ = "ipc://@" + new_name();
  void* context_ = nullptr;
  void* socket_ = nullptr;
};
#endif

constexpr int kMessages = 200'000, kRoundTrips = 20'000;

template <class Transport, class... Arguments>
void add(const std::string& name, Arguments... arguments) {
  const auto make = [arguments...] { return Transport(arguments...); };
  benchmark::RegisterBenchmark(("small_rate/" + name).c_str(),
                               [make](benchmark::State& state) { throughput(state, make); })
      ->UseManualTime()
      ->Iterations(kMessages);
  benchmark::RegisterBenchmark(("small_half_round_trip/" + name).c_str(),
                               [make](benchmark::State& state) { half_round_trip(state, make); })
      ->UseManualTime()
      ->Iterations(kRoundTrips);
}

template <std::size_t kBytes>
void add_transports(const std::string& size) {
  add<SmallTransport<kBytes>>(size + "/shmtree");
  add<SmallTransport<kBytes>>(size + "/shmtree_spin", Wait::kSpinning);
  add<RingTransport<kBytes, false>>(size + "/ring_that_spins");
  add<RingTransport<kBytes, true>>(size + "/ring_that_sleeps");
  add<PipeTransport<kBytes>>(size + "/pipe");
#ifdef SHMTREE_BENCH_BOOST
  add<BoostTransport<kBytes>>(size + "/boost_message_queue");
#endif
#ifdef SHMTREE_BENCH_ZEROMQ
  add<ZeroMqTransport<kBytes>>(size + "/zeromq");
#endif
}

const int registered = [] {
  add_transports<8>("8B");
  add_transports<kKilobyte>("1KB");
  add<DictTransport>("dict/shmtree");
  add<DictTransport>("dict/shmtree_spin", Wait::kSpinning);
  return 0;
}();

}  // namespace
}  // namespace shmtree::bench
