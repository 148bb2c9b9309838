// A writer is killed between any two instructions. Crash points, in contrast, are only before changes of shared memory.
#include <functional>

#include "support/catch2.h"
#include "support/replay_survivors.h"
#include "support/stepped_child.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

struct Operation {
  const char* name;
  ShapeOptions options;
  std::function<void(Writer&)> act;
  std::optional<std::uint32_t> stream = 2;  // none: the writer takes chunks that were left, and leaves its own
};

void add_some(Writer& writer, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) add(writer, first + i).value();
}
void extend_with(Writer& writer, std::uint64_t first, std::uint64_t count) {
  std::vector<Row> rows;
  for (std::uint64_t i = 0; i < count; ++i) rows.emplace_back(first + i);
  writer.extend({.columns = columns_of(rows), .count = count}, nullptr, patience()).value();
}

const ShapeOptions kPlain{.capacity = 12, .rows_per_chunk = 4};
const ShapeOptions kAhead{.capacity = 12, .rows_per_chunk = 2, .ahead = 2};
const ShapeOptions kFinals{.capacity = 12, .rows_per_chunk = 2, .ahead = 2, .finals = true};

std::vector<Operation> operations() {
  return {
      {"a row", kPlain, [](Writer& writer) { add_some(writer, 100, 2); }},
      {"rows that others wait for", kAhead, [](Writer& writer) { add_some(writer, 100, 4); }},
      {"rows at once", kAhead, [](Writer& writer) { extend_with(writer, 100, 5); }},
      {"an episode's end", kFinals,
       [](Writer& writer) {
         add_some(writer, 100, 2);
         end_with(writer, 102, true).value();
       }},
      {"a close", kFinals,
       [](Writer& writer) {
         add(writer, 100, {.done = true}).value();
         writer.close();
       }},
      {"a place that was left", kPlain, [](Writer& writer) { add_some(writer, 100, 1); }, std::nullopt},
      {"a place that is left", kPlain,
       [](Writer& writer) {
         add_some(writer, 100, 2);
         writer.close();
       },
       std::nullopt},
  };
}

Stepped kill_in(const Operation& operation, std::int64_t change, int instructions) {
  INFO(operation.name << ", killed " << instructions << " instructions after change " << change);
  const auto store = new_store(operation.options);
  Writer writer(store, 1);
  std::vector<std::uint64_t> known;
  for (std::uint64_t i = 0; i < 14; ++i) known.push_back(add(writer, i).value());
  if (!operation.stream) {
    Writer leaver(store, std::nullopt);
    known.push_back(add(leaver, 14).value());
  }
  SteppedChild child(change, [&] {
    Writer own(store, operation.stream);
    operation.act(own);
  });
  const Stepped stepped = child.step(instructions);
  child.kill_now();
  REQUIRE(is_whole_after_a_kill(store, known, 200));
  return stepped;
}

}  // namespace

// guarantee: replay-crash-safety
TEST_CASE("A writer killed at any instruction leaves whole rows") {
  if (!can_step()) return;
  int kills = 0;
  for (const Operation& operation : operations()) {
    kills += kill_everywhere(20, [&](std::int64_t change, int further) { return kill_in(operation, change, further); });
  }
  CHECK(kills > 500);
}

#endif
