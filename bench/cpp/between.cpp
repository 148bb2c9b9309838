// Messages between processes: throughput, latency, and many processes at one channel.
#include "between.h"

#include <functional>
#include <string>
#include <utility>

#include "samples.h"
#include "transports.h"

namespace shmtree::bench {
namespace {

constexpr int kMany = 100'000, kSome = 20'000, kFew = 500;
constexpr useconds_t kPause_us = 300;  // longer than any receiver spins

// `senders` processes put samples and exit. `receivers` processes get until all senders have exited. Reports the time
// per message over all processes.
void contention(benchmark::State& state) {
  const auto senders = static_cast<int>(state.range(0)), receivers = static_cast<int>(state.range(1));
  const std::int64_t each = state.max_iterations / senders;
  const Value value = five_scalars();
  while (state.KeepRunningBatch(state.max_iterations)) {
    auto [sender, receiver] =
        make_pair({.capacity = kCapacity, .arena = Arena::create({.max_bytes = 64 << 20}).value()});
    Processes processes;
    Shared<std::atomic<std::int64_t>> received;
    for (int i = 0; i < receivers; ++i) {
      processes.start([&] {
        sender.close();
        processes.meet(senders + receivers);
        std::int64_t got = 0;
        for (Result<Item> item = receiver.get(); item.ok() || item.code() != Code::kClosed; item = receiver.get()) {
          got += item.value().size() == 5 ? 1 : 0;
        }
        processes.end();
        received->fetch_add(got);
      });
    }
    for (int i = 0; i < senders; ++i) {
      processes.start([&] {
        receiver.close();
        processes.meet(senders + receivers);
        processes.begin();
        for (std::int64_t n = 0; n < each; ++n) sender.put(value).value();
        sender.close();
      });
    }
    sender.close(), receiver.close();
    tell(state, processes.finish());
    require(received->load() == each * senders, "messages were lost");
  }
}

template <class Transport>
auto made(Wait wait = Wait::kAsGiven) {
  return [wait] { return Transport(wait); };
}

benchmark::internal::Benchmark* between(const std::string& name, int count,
                                        std::function<void(benchmark::State&)> measure) {
  return benchmark::RegisterBenchmark(name.c_str(), std::move(measure))->UseManualTime()->Iterations(count);
}

template <class Make>
void register_throughput(const char* name, Make make) {
  between(std::string("throughput/") + name, kMany, [make](benchmark::State& state) { throughput(state, make); });
}
template <class Make>
void register_round_trip(const char* name, Make make) {
  between(std::string("half_round_trip/") + name, kSome,
          [make](benchmark::State& state) { half_round_trip(state, make); });
}
template <class Make>
void register_idle(const char* name, Make make) {
  between(std::string("half_round_trip_after_a_pause/") + name, kFew,
          [make](benchmark::State& state) { half_round_trip(state, make, kPause_us); });
}

const int registered = [] {
  register_throughput("number", made<ValueTransport>());
  register_throughput("1KB", made<KilobyteTransport>());
  register_throughput("1KB_polling", made<KilobyteTransport>(Wait::kPolling));
  register_throughput("1KB_in_place", made<InPlaceTransport>());
  register_throughput("1KB_tree", made<TreeTransport>(Wait::kPolling));
  register_throughput("1KB_bytes", made<BytesTransport>(Wait::kPolling));
  register_throughput("1KB_struct", made<StructTransport>(Wait::kPolling));
  register_throughput("1KB_loan", made<LoanTransport>(Wait::kPolling));
  register_throughput("1KB_without_values", made<BlockTransport>(Wait::kPolling));
  register_round_trip("number", made<ValueTransport>());
  register_round_trip("number_polling", made<ValueTransport>(Wait::kPolling));
  register_round_trip("1KB_polling", made<KilobyteTransport>(Wait::kPolling));
  register_round_trip("1KB_tree_polling", made<TreeTransport>(Wait::kPolling));
  register_round_trip("1KB_bytes_polling", made<BytesTransport>(Wait::kPolling));
  register_round_trip("1KB_struct_polling", made<StructTransport>(Wait::kPolling));
  register_round_trip("1KB_loan_polling", made<LoanTransport>(Wait::kPolling));
  register_round_trip("1KB_without_values_polling", made<BlockTransport>(Wait::kPolling));
  register_round_trip("bare_futex", made<WordTransport>());
  register_round_trip("bare_word_polling", made<WordTransport>(Wait::kPolling));
  register_idle("number", made<ValueTransport>());
  register_idle("1KB", made<KilobyteTransport>());
  register_idle("bare_futex", made<WordTransport>());
  between("contention", kMany, contention)
      ->ArgNames({"senders", "receivers"})
      ->Args({1, 1})
      ->Args({4, 1})
      ->Args({1, 4})
      ->Args({4, 4})
      ->Args({16, 16});
  return 0;
}();

}  // namespace
}  // namespace shmtree::bench
