// Throughput of publishers that share an arena, each with its own Broadcast. Prints one row for each number of
// publishers. `bench_rings [SECONDS]`: duration of each measurement, 1 by default.
#include <cstdlib>
#include <string>
#include <vector>

#include "processes.h"
#include "shmtree/broadcast.h"

namespace shmtree::bench {
namespace {

constexpr int kMaxPublishers = 8;

// Returns thousands of messages per second, summed over all publishers.
double rate(int publishers, std::size_t bytes, double seconds) {
  const Arena arena = Arena::create({.max_bytes = std::uint64_t{256} << 20}).value();
  std::vector<Broadcast> broadcasts;
  for (int i = 0; i < publishers; ++i) {
    BroadcastOptions options;
    options.arena = arena;
    broadcasts.push_back(make_broadcast(options));
  }
  struct Counts {
    std::atomic<std::uint64_t> put[kMaxPublishers];
  };
  Shared<Counts> counts;
  Processes processes;
  for (int i = 0; i < publishers; ++i) {
    processes.start([&, i] {
      const Value message(std::string(bytes, 'x'));
      broadcasts[i].put(message).value();
      processes.meet(publishers);
      processes.begin();
      const std::int64_t end = now_ns() + static_cast<std::int64_t>(seconds * 1e9);
      std::uint64_t put = 0;
      while (now_ns() < end) {
        for (int k = 0; k < 64; ++k) broadcasts[i].put(message).value();
        put += 64;
      }
      counts->put[i] = put;
      processes.end();
    });
  }
  const double took = processes.finish().seconds;
  std::uint64_t all = 0;
  for (int i = 0; i < publishers; ++i) all += counts->put[i];
  return static_cast<double>(all) / took / 1000;
}

}  // namespace
}  // namespace shmtree::bench

int main(int argc, char** argv) {
  using namespace shmtree::bench;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  std::printf("%10s %14s %14s   (thousand messages per second, together)\n", "publishers", "100 bytes", "4,000 bytes");
  for (int publishers = 1; publishers <= kMaxPublishers; publishers *= 2) {
    std::printf("%10d %14.0f %14.0f\n", publishers, rate(publishers, 100, seconds), rate(publishers, 4000, seconds));
  }
}
