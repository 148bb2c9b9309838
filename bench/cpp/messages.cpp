// Measures the work of a channel, without and with values. One thread puts and gets each message, so no call blocks.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>

#include "channel/channel.h"
#include "samples.h"
#include "shmtree/shmtree.h"

namespace shmtree::bench {
namespace {

using channel::BlockRef;
using channel::Channel;
using channel::Outgoing;
using platform::WaitContext;

std::shared_ptr<Channel> new_channel() {
  auto arena = memory::Arena::create({.max_bytes = std::uint64_t{64} << 20}).value();
  auto made = Channel::create(std::move(arena), {.capacity = 8}).value();
  made->membership().join(channel::End::kSending).value();
  made->membership().join(channel::End::kReceiving).value();
  return made;
}

void publish_and_receive_inline(benchmark::State& state) {
  const auto channel = new_channel();
  std::byte frame[64] = {};
  for (auto _ : state) {
    Outgoing message{.inline_frame = frame};
    channel->sending().put(message, WaitContext{}).value();
    channel::Incoming received;
    channel->receiving().get(received, WaitContext{}).value();
    benchmark::DoNotOptimize(received.frame().data());
  }
}
BENCHMARK(publish_and_receive_inline);

void publish_and_receive_block(benchmark::State& state) {
  const auto channel = new_channel();
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  for (auto _ : state) {
    Outgoing message{.bytes = bytes};
    message.block = channel->arena()->allocate(bytes, memory::BlockKind::kMessage, WaitContext{}).value();
    channel->sending().put(message, WaitContext{}).value();
    channel::Incoming received;
    channel->receiving().get(received, WaitContext{}).value();
    benchmark::DoNotOptimize(received.frame().data());
  }
}
BENCHMARK(publish_and_receive_block)->Arg(1 << 10)->Arg(1 << 20);

void put_and_get(benchmark::State& state, Value (*make)()) {
  auto [sender, receiver] = make_pair({.capacity = 8, .arena = Arena::create({.max_bytes = 64 << 20}).value()});
  const Value value = make();
  for (auto _ : state) {
    sender.put(value, std::chrono::seconds(60)).value();
    Item item = receiver.get(std::chrono::seconds(60)).value();
    benchmark::DoNotOptimize(item);
  }
}
BENCHMARK_CAPTURE(put_and_get, int, [] { return Value(17); });
BENCHMARK_CAPTURE(put_and_get, bytes_1KB, [] { return plain_bytes(1024); });
BENCHMARK_CAPTURE(put_and_get, scalars, five_scalars);
BENCHMARK_CAPTURE(put_and_get, transition, transition);
BENCHMARK_CAPTURE(put_and_get, nested_batch, nested_batch);
BENCHMARK_CAPTURE(put_and_get, agents, twelve_agents);

}  // namespace
}  // namespace shmtree::bench
