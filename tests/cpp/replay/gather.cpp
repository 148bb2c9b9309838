// Batches: invalid options, overwritten rows, and damaged shared words.
#include <random>

#include "support/catch2.h"
#include "support/replay_model.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::Gather;
using replay::GatherOptions;
using replay::OutputKind;

namespace {

std::shared_ptr<Store> model_store(const ShapeOptions& options) {
  return Store::create(new_arena(64 * kMiB), replay::shape_of(kModelLeaves, options).value(), {}, patience()).value();
}
std::uint64_t add_row(Writer& writer, std::uint64_t number) {
  const ModelRow row(number);
  return writer.add(row.leaves(), {}, patience()).value();
}

}  // namespace

TEST_CASE("An impossible batch is refused with the numbers") {
  const auto store = model_store({.capacity = 100, .ahead = 2, .finals = true});
  const auto refused = [&](const GatherOptions& options, const std::string& number) {
    const auto gather = Gather::create(store, options);
    return gather.code() == Code::kInvalid && gather.error().message.find(number) != std::string::npos;
  };
  CHECK(refused({.outputs = {{.leaf = 4}}}, "leaf number 4"));
  CHECK(refused({.outputs = {{.kind = OutputKind::kSuccessor}}, .n_step = 3}, "3 steps later"));
  CHECK(refused({.outputs = {{.kind = OutputKind::kDiscount}}, .n_step = 4}, "4 steps later"));
  CHECK(refused({.outputs = {{.kind = OutputKind::kDiscount}}, .n_step = 0}, "n_step is 0"));
  CHECK(refused({.outputs = {{.kind = OutputKind::kStack, .frames = 0}}}, "0 frames"));
  CHECK(refused({.outputs = {{.kind = OutputKind::kRewardSum, .leaf = 1, .is_double = true}}}, "4 bytes"));
  CHECK(refused({}, "at least one output"));
  CHECK(Gather::create(store, {.outputs = {{.kind = OutputKind::kRewardSum, .leaf = 2}}, .n_step = 3}).ok());
}

TEST_CASE("Missing rows are filled with zeros and others are right") {
  const auto store = model_store({.capacity = 100, .rows_per_chunk = 4});
  Writer writer(store, 1);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 1; i <= 300; ++i) indices.push_back(add_row(writer, i));
  indices.push_back(0);
  indices.push_back(~std::uint64_t{0});
  for (const unsigned threads : {1u, 3u}) {
    ModelBatch batch(store, {});
    batch.read(indices, threads);
    for (std::size_t at = 0; at < indices.size(); ++at) {
      const bool there = 202 <= at && at < 300;  // rows 200 and 201 exist, but frames of theirs have left the window
      CHECK(batch.gone[at] == !there);
      if (200 <= at && at < 202) continue;
      CHECK(batch.number<std::uint64_t>(0, at) == (there ? at + 1 : 0));
      CHECK(batch.is_frame(1, at, there ? at + 1 : 0));
    }
  }
}

TEST_CASE("A batch copied by several threads has the right rows") {
  const auto store = model_store({.capacity = 20'000});
  Writer writer(store, 1);
  std::vector<std::uint64_t> all, sampled;
  for (std::uint64_t i = 1; i <= 10'000; ++i) all.push_back(add_row(writer, i));
  std::mt19937 random(7);
  for (int i = 0; i < 9'999; ++i) sampled.push_back(all[random() % all.size()]);
  for (const unsigned threads : {1u, 2u, 5u}) {
    ModelBatch batch(store, {});
    batch.read(sampled, threads);
    std::size_t wrong = 0;
    for (std::size_t at = 0; at < sampled.size(); ++at) {
      const std::uint64_t number = sampled[at] - all[0] + 1;
      wrong += batch.gone[at] || batch.number<std::uint64_t>(0, at) != number || !batch.is_frame(1, at, number);
    }
    CHECK(wrong == 0);
  }
}

// guarantee: replay-crash-safety
TEST_CASE("Batches and writers stay in bounds with corrupt words") {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const ModelOptions options{.n_step = 3, .finals = true};
    const auto store = model_store({.capacity = 64, .rows_per_chunk = 4, .ahead = 3, .finals = true});
    store->set_frames(9);
    Writer writer(store, 1);
    std::vector<std::uint64_t> indices{0};
    for (std::uint64_t i = 1; i <= 100; ++i) indices.push_back(add_row(writer, i));
    const auto any = [&]() -> std::uint64_t {
      const std::uint64_t ticket = store->window().head + random() % 20;
      switch (random() % 4) {
        case 0: return random();
        case 1: return ticket;
        case 2: return replay::pack({.ticket = ticket, .rows = 127, .ready = 127});
        default: return random() % 3;
      }
    };
    auto* control = reinterpret_cast<std::byte*>(&header_of(*store));
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(control);
    const std::size_t first = sizeof(ReplayHeader) / 8;  // the state of chunks, behind the header
    const auto last = static_cast<std::size_t>(store->tables_area().data() - control) / 8;
    for (int i = 0; i < 40; ++i) words[first + random() % (last - first)] = any();
    if (trial % 3 == 0) words[9 + random() % 4] = any();  // head, tail, opening, reserved
    for (int i = 0; i < 20; ++i) indices.push_back(random());
    ModelBatch batch(store, options);
    batch.read(indices);
    store->size();
    for (std::uint64_t i = 0; i < 20; ++i) {
      const ModelRow row(i);
      const auto added = writer.add(row.leaves(), {.done = i % 5 == 0}, patience(2'000));
      if (!added) break;
    }
    static_cast<void>(writer.end({}, false, patience(2'000)));
    writer.close();
  }
}
