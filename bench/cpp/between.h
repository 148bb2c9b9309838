// Measurements between two processes, each on a core of its own, for any transport of transports.h.
#pragma once

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "processes.h"

namespace shmtree::bench {

// Some transports need a call in the process that uses an end.
template <class Transport>
void join(Transport& transport, bool sends) {
  if constexpr (requires { transport.join(sends); }) transport.join(sends);
}

// Pins the calling process to one of the cores that it may use, so that two processes never share one. Does nothing if
// there is only one core.
inline void pin(int number) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0 || CPU_COUNT(&usable) < 2) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || number-- != 0) continue;
    CPU_ZERO(&usable);
    CPU_SET(core, &usable);
    sched_setaffinity(0, sizeof usable, &usable);
    return;
  }
}

inline void tell(benchmark::State& state, const Processes::Took& took) {
  state.SetIterationTime(took.seconds);
  state.counters["cpu_ns"] = took.cpu_seconds * 1e9 / static_cast<double>(state.max_iterations);
}

// One process sends as fast as the other receives. Reports the time per message at the receiver.
template <class Make>
void throughput(benchmark::State& state, Make make) {
  constexpr std::uint64_t kWarmUp = 2000;
  const auto count = static_cast<std::uint64_t>(state.max_iterations);
  while (state.KeepRunningBatch(state.max_iterations)) {
    auto transport = make();
    Processes processes;
    processes.start([&] {
      pin(0);
      join(transport, false);
      processes.meet(2);
      for (std::uint64_t i = 0; i < kWarmUp + count; ++i) {
        if (i == kWarmUp) processes.begin();
        require(transport.receive() == i, "a message lost or out of order");
      }
      processes.end();
      processes.meet(4);
    });
    processes.start([&] {
      pin(1);
      join(transport, true);
      processes.meet(2);
      for (std::uint64_t i = 0; i < kWarmUp + count; ++i) transport.send(i);
      processes.meet(4);  // some transports drop sent messages when the sender exits
    });
    tell(state, processes.finish());
  }
}

struct Latencies {
  double median, p99;  // seconds
};

// One process sends and the other answers. Reports half of the median round trip. With a pause before each message, the
// receiver sleeps.
template <class Make>
void half_round_trip(benchmark::State& state, Make make, useconds_t pause_us = 0) {
  const auto count = static_cast<std::size_t>(state.max_iterations);
  const std::size_t warm_up = pause_us == 0 ? 2000 : 50;
  while (state.KeepRunningBatch(state.max_iterations)) {
    auto there = make(), back = make();
    Shared<Latencies> latencies;
    Processes processes;
    processes.start([&] {
      pin(0);
      join(there, false), join(back, true);
      processes.meet(2);
      for (std::size_t i = 0; i < warm_up + count; ++i) back.send(there.receive());
      processes.meet(4);
    });
    processes.start([&] {
      pin(1);
      join(there, true), join(back, false);
      std::vector<std::int64_t> took(warm_up + count);
      processes.meet(2);
      for (std::size_t i = 0; i < took.size(); ++i) {
        if (pause_us != 0) usleep(pause_us);
        const std::int64_t began = now_ns();
        there.send(i);
        require(back.receive() == i, "another answer");
        took[i] = now_ns() - began;
      }
      std::sort(took.begin() + static_cast<std::ptrdiff_t>(warm_up), took.end());
      latencies->median = static_cast<double>(took[warm_up + count / 2]) * 0.5e-9;
      latencies->p99 = static_cast<double>(took[warm_up + count * 99 / 100]) * 0.5e-9;
      processes.meet(4);
    });
    Processes::Took spent = processes.finish();
    spent.seconds = latencies->median * static_cast<double>(count);
    tell(state, spent);
    state.counters["p99_ns"] = latencies->p99 * 1e9;
  }
}

}  // namespace shmtree::bench
