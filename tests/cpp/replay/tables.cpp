// Priorities of rows: initial values, updates and refused ones, in every process. An update never affects the next row
// in the same slot.
#include "support/tables.h"

#include <cfloat>
#include <cmath>
#include <limits>

#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const TableSpec kByPriority{.kind = SamplerKind::kPrioritized, .alpha = 1, .eps = 0};

bool is_refused(const Result<std::vector<bool>>& result, const std::string& number) {
  return !result.ok() && result.code() == Code::kInvalid && result.error().message.find(number) != std::string::npos;
}

}  // namespace

TEST_CASE("New rows get a given priority or the largest so far") {
  const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 4}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t first = add_row(writer, 0), second = add_row(writer, 1, 3.0f);
  const std::uint64_t third = add_row(writer, 2, 0.5f), fourth = add_row(writer, 3);
  CHECK(weight_at(*tables, first) == 1.0f);
  CHECK(weight_at(*tables, second) == 3.0f);
  CHECK(weight_at(*tables, third) == 0.5f);
  CHECK(weight_at(*tables, fourth) == 3.0f);
  CHECK(tables->max_priority(0) == 3.0);
}

TEST_CASE("raise_max_priority only raises and ignores invalid values") {
  const auto tables = new_tables({.capacity = 64, .rows_per_chunk = 4}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  tables->raise_max_priority(0, 7.0);
  tables->raise_max_priority(0, 2.0);
  for (const double none : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    tables->raise_max_priority(0, none);
  }
  CHECK(weight_at(*tables, add_row(writer, 0)) == 7.0f);
  CHECK(tables->max_priority(0) == 7.0);
}

TEST_CASE("alpha and eps make a weight that converts back to priority") {
  const TableSpec spec{.kind = SamplerKind::kPrioritized, .alpha = 0.6, .eps = 0.01};
  const auto tables = new_tables({.capacity = 64}, {spec, {.kind = SamplerKind::kMaxPriority}});
  for (const double priority : {0.0, 0.3, 1.0, 50.0}) {
    const float weight = (*tables)[0].weight_of(priority);
    CHECK(weight == Approx(std::pow(priority + 0.01, 0.6)).epsilon(1e-5));
    CHECK((*tables)[0].priority_of(weight) == Approx(priority).margin(1e-6));
    CHECK((*tables)[1].priority_of((*tables)[1].weight_of(priority)) == Approx(priority));
  }
  CHECK((*tables)[1].weight_of(0) > 0);  // rows of priority 0 are sampled if there are no others
}

TEST_CASE("An update changes existing rows and reports which") {
  const auto tables = new_tables({.capacity = 8, .rows_per_chunk = 1}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < 10; ++i) indices.push_back(add_row(writer, i));
  CHECK(update(*tables, indices, std::vector<double>(10, 5.0)).value() ==
        std::vector<bool>{false, false, true, true, true, true, true, true, true, true});
  for (std::size_t i = 2; i < 10; ++i) CHECK(weight_at(*tables, indices[i]) == 5.0f);
  CHECK(tables->max_priority(0) == 5.0);
}

TEST_CASE("The last priority of a repeated index counts") {
  const auto tables = new_tables({.capacity = 8}, {kByPriority});
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t index = add_row(writer, 0), other = add_row(writer, 1);
  CHECK(update(*tables, {index, other, index}, {2, 3, 4}).value() == std::vector<bool>(3, true));
  CHECK(weight_at(*tables, index) == 4.0f);
  CHECK(weight_at(*tables, other) == 3.0f);
}

TEST_CASE("Invalid priorities and indices are refused without changes") {
  const TableSpec steep{.kind = SamplerKind::kPrioritized, .alpha = 4, .eps = 0};
  const auto tables = new_tables({.capacity = 8}, {steep});
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t index = add_row(writer, 0), other = add_row(writer, 1);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(is_refused(update(*tables, {index, other}, {2, std::nan("")}), "number 1 is nan"));
  CHECK(is_refused(update(*tables, {index, other}, {2, -0.5}), "-0.5"));
  CHECK(is_refused(update(*tables, {index, other}, {2, infinity}), "inf"));
  CHECK(is_refused(update(*tables, {index, other}, {2, 1e10}),
                   "the sampler's exponent"));  // its fourth power overflows a float
  CHECK(is_refused(update(*tables, {index, other}, {2}), "2 indices and 1 priorities"));
  CHECK(is_refused(update(*tables, {index, index + 5}, {2, 2}), std::to_string(index + 5)));
  CHECK(is_refused(update(*tables, {index, 0}, {2, 2}), "index 0"));
  CHECK(is_refused(update(*tables, {index, ~std::uint64_t{1}}, {2, 2}), std::to_string(~std::uint64_t{1})));
  CHECK(weight_at(*tables, index) == 1.0f);
  CHECK(tables->max_priority(0) == 1.0);
  CHECK(tables->check_priorities(std::array{1.0, -1.0}).code() == Code::kInvalid);
  CHECK(tables->check_priorities(std::array{1.0, 2.0}).ok());
  CHECK(update(*tables, {index}, {2}).value() == std::vector<bool>{true});
}

TEST_CASE("Samplers without priorities refuse updates") {
  const auto tables = new_tables({.capacity = 8}, {{.kind = SamplerKind::kUniform}});
  Writer writer(tables->store(), 1, tables.get());
  CHECK(is_refused(update(*tables, {add_row(writer, 0)}, {2}), "no priorities"));
}

TEST_CASE("One update can target one sampler or all of them") {
  const auto tables =
      new_tables({.capacity = 8}, {kByPriority, {.kind = SamplerKind::kUniform}, {.kind = SamplerKind::kMaxPriority}});
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t index = add_row(writer, 0, 2.0f);
  CHECK(weight_at(*tables, index, 2) == 2.0f);
  update(*tables, {index}, {3}, 0).value();
  CHECK(weight_at(*tables, index, 0) == 3.0f);
  CHECK(weight_at(*tables, index, 2) == 2.0f);
  update(*tables, {index}, {7}).value();
  CHECK(weight_at(*tables, index, 0) == 7.0f);
  CHECK(weight_at(*tables, index, 2) == 7.0f);
  CHECK(tables->max_priority(2) == 7.0);
}

TEST_CASE("A late update does not change a new row in the same slot") {
  const auto tables = new_tables({.capacity = 4, .rows_per_chunk = 1}, {kByPriority});
  const std::uint64_t places = tables->store()->shape().chunks;
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t old = add_row(writer, 0);
  std::uint64_t next = old;
  while (next != old + places) next = add_row(writer, 1);
  tables->before_ready(old, std::array{2.0f});  // as a writer that was stopped, and continues
  CHECK(update(*tables, {old}, {9}).value() == std::vector<bool>{false});
  CHECK(weight_at(*tables, next) == 1.0f);
  CHECK(tables->max_priority(0) == 2.0);
}

TEST_CASE("clear resets rows and weights but keeps the max priority") {
  const replay::RateLimit limit{.samples_per_insert = 1, .min_size = 1, .error_buffer = 100};
  const auto tables = new_tables({.capacity = 40, .rows_per_chunk = 4}, {kByPriority}, new_arena(), kLeafBytes, &limit);
  Writer writer(tables->store(), 1, tables.get());
  std::vector<std::uint64_t> before;
  for (std::uint64_t i = 0; i < 30; ++i) before.push_back(add_row(writer, i, 5.0f));
  REQUIRE(tables->clear(patience()).ok());
  CHECK(tables->store()->size() == 0);
  CHECK(tables->limiter()->inserts() == 0);
  for (const std::uint64_t index : before) CHECK(weight_at(*tables, index) == 0);
  const std::uint64_t index = add_row(writer, 1);
  CHECK(weight_at(*tables, index) == 5.0f);  // the largest priority is kept
  CHECK(tables->limiter()->inserts() == 1);
  CHECK(tables->store()->size() == 1);
}

TEST_CASE("Another process opens tables and invalid ones are refused") {
  const auto arena = new_arena();
  const auto tables = new_tables({.capacity = 100}, {kByPriority, {.kind = SamplerKind::kFifo, .max_times = 2}}, arena);
  Writer writer(tables->store(), 1, tables.get());
  const std::uint64_t index = add_row(writer, 0, 4.0f);
  Child child([&] {
    const auto own = opened_tables(tables);
    return own->size() == 2 && (*own)[0].spec().alpha == 1 && (*own)[1].spec().max_times == 2 &&
           weight_at(*own, index) == 4.0f && weight_at(*own, index, 1) == 1.0f &&
           update(*own, {index}, {6}).value() == std::vector<bool>{true};
  });
  REQUIRE(child.succeeded());
  CHECK(weight_at(*tables, index) == 6.0f);
  CHECK(Tables::open(new_store({.capacity = 100}, arena)).code() == Code::kIncompatible);
  auto& header = *reinterpret_cast<replay::TablesHeader*>(tables->store()->tables_area().data());
  auto* heads = reinterpret_cast<replay::TableHead*>(&header + 1);
  heads[0].kind = 77;
  CHECK(Tables::open(tables->store()).code() == Code::kIncompatible);
  heads[0].kind = 2;
  header.count = 9;
  CHECK(Tables::open(tables->store()).code() == Code::kIncompatible);
}

TEST_CASE("Invalid samplers are refused with their numbers") {
  const Shape shape = replay::shape_of(kLeafBytes, {.capacity = 100}).value();
  const auto refused = [&](const TableSpec& spec, const std::string& number) {
    const auto bytes = Tables::bytes_for(shape, std::array{spec});
    return bytes.code() == Code::kInvalid && bytes.error().message.find(number) != std::string::npos;
  };
  CHECK(refused({.kind = SamplerKind::kPrioritized, .alpha = -2}, "alpha is -2"));
  CHECK(refused({.kind = SamplerKind::kPrioritized, .beta = std::nan("")}, "beta is nan"));
  CHECK(refused({.kind = static_cast<SamplerKind>(9)}, "unknown kind"));
  CHECK(Tables::bytes_for(shape, {}).code() == Code::kInvalid);
}
