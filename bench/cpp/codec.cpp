// Measures encoding and decoding of values, as put() and get() do it, without a channel.
#include "value/codec.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "samples.h"

namespace shmtree::bench {
namespace {

struct Frame {
  explicit Frame(const Value& value) {
    format::FrameBuilder builder;
    value::encode(value, builder).value();
    size = builder.total_bytes();
    words = std::make_shared<std::vector<std::uint64_t>>(size / 8 + 1);
    builder.write(data());
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(words->data()); }

  std::size_t size = 0;
  std::shared_ptr<std::vector<std::uint64_t>> words;
};

void set_bytes(benchmark::State& state, std::size_t bytes) {
  state.counters["frame"] = static_cast<double>(bytes);
}

void encode(benchmark::State& state, const Sample& sample) {
  const Value value = sample.make();
  const Frame frame(value);
  format::FrameBuilder builder;
  for (auto _ : state) {
    value::encode(value, builder).value();
    builder.write(frame.data());
    benchmark::ClobberMemory();
  }
  set_bytes(state, frame.size);
}

// Decodes only the tree: arrays are views of the frame.
void decode(benchmark::State& state, const Sample& sample) {
  const Frame frame(sample.make());
  for (auto _ : state) {
    Item item = value::decode({frame.data(), frame.size}, frame.words).value();
    benchmark::DoNotOptimize(item);
  }
  set_bytes(state, frame.size);
}

// Measures the part of encode() that copies the bytes of arrays.
void copy(benchmark::State& state, const Sample& sample) {
  const Value value = sample.make();
  const Frame frame(value);
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  for (auto _ : state) {
    builder.copy_buffers(frame.data());
    benchmark::ClobberMemory();
  }
}

const int registered = [] {
  for (const Sample& sample : kSamples) {
    const std::string name = sample.name;
    benchmark::RegisterBenchmark(("encode/" + name).c_str(), [&](benchmark::State& state) { encode(state, sample); });
    benchmark::RegisterBenchmark(("decode/" + name).c_str(), [&](benchmark::State& state) { decode(state, sample); });
  }
  for (const Sample& sample : {kSamples[0], kSamples[1]}) {
    benchmark::RegisterBenchmark((std::string("copy/") + sample.name).c_str(),
                                 [sample](benchmark::State& state) { copy(state, sample); });
  }
  return 0;
}();

}  // namespace
}  // namespace shmtree::bench
