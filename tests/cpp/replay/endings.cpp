// Ends of episodes that the leaves of rows indicate, and streams that end with a truncated row.
#include "replay/buffer/endings.h"

#include "support/catch2.h"
#include "support/replays.h"

using namespace shmtree;
using namespace shmtree::replay;
using shmtree::test::new_store;
using shmtree::test::patience;

namespace {

// Spec of rows with the requested ones of {"done", "terminated", "truncated"}, as bytes or doubles.
Spec spec_of(bool done, bool terminated, bool truncated, bool doubles = false) {
  Spec spec;
  spec.row.form = SpecPart::Form::kDict;
  const auto add = [&](const char* key, bool is_wanted, std::optional<std::size_t>& leaf) {
    if (!is_wanted) return;
    leaf = spec.leaves.size();
    spec.row.keys.push_back({.bytes = key});
    spec.row.parts.push_back({.leaf = *leaf});
    spec.leaves.push_back(doubles ? SpecLeaf{"<f8", 8, {}} : SpecLeaf{"|b1", 1, {}});
  };
  add("over", done, spec.done);
  add("terminated", terminated, spec.terminated);
  add("truncated", truncated, spec.truncated);
  return spec;
}

template <class Number>
Result<Ending> ending_of(const Spec& spec, std::vector<Number> row) {
  std::vector<Column> leaves;
  for (const Number& each : row) leaves.push_back(&each);
  return Endings(spec).of(leaves, 0, 1);
}

std::string text_of(const Result<Ending>& result) {
  REQUIRE(result.code() == Code::kInvalid);
  return result.error().message;
}

}  // namespace

TEST_CASE("done equals the other end keys or replaces a missing one") {
  using Row = std::vector<char>;
  const Spec all = spec_of(true, true, true);
  CHECK(ending_of(all, Row{0, 0, 0}).value() == Ending::kNone);
  CHECK(ending_of(all, Row{1, 1, 0}).value() == Ending::kTerminated);
  CHECK(ending_of(all, Row{1, 0, 1}).value() == Ending::kTruncated);
  CHECK(ending_of(all, Row{1, 1, 1}).value() == Ending::kTerminated);
  CHECK(text_of(ending_of(all, Row{1, 0, 0})) ==
        "the row has terminated = false, truncated = false, over = true, and over must be true exactly where an "
        "episode terminated or was truncated");
  CHECK(ending_of(all, Row{0, 1, 0}).code() == Code::kInvalid);
  CHECK(ending_of(all, Row{0, 0, 1}).code() == Code::kInvalid);

  const Spec gymnasium = spec_of(false, true, true);
  CHECK(ending_of(gymnasium, Row{0, 0}).value() == Ending::kNone);
  CHECK(ending_of(gymnasium, Row{1, 0}).value() == Ending::kTerminated);
  CHECK(ending_of(gymnasium, Row{0, 1}).value() == Ending::kTruncated);
  CHECK(ending_of(gymnasium, Row{1, 1}).value() == Ending::kTerminated);

  CHECK(ending_of(spec_of(true, false, false), Row{1}).value() == Ending::kDone);
  CHECK(ending_of(spec_of(true, true, false), Row{1, 0}).value() == Ending::kTruncated);
  CHECK(ending_of(spec_of(true, true, false), Row{1, 1}).value() == Ending::kTerminated);
  CHECK(ending_of(spec_of(true, true, false), Row{0, 1}).code() == Code::kInvalid);
  CHECK(ending_of(spec_of(true, false, true), Row{1, 0}).value() == Ending::kTerminated);
  CHECK(ending_of(spec_of(true, false, true), Row{1, 1}).value() == Ending::kTruncated);
  CHECK(ending_of(spec_of(false, false, false), Row{}).value() == Ending::kNone);
}

TEST_CASE("A number ends an episode unless it is 0 or -0") {
  const Spec spec = spec_of(false, true, true, true);
  using Row = std::vector<double>;
  CHECK(ending_of(spec, Row{-0.0, 0.0}).value() == Ending::kNone);
  CHECK(ending_of(spec, Row{0.0, 1e-300}).value() == Ending::kTruncated);
  CHECK(ending_of(spec, Row{-1.0, 0.0}).value() == Ending::kTerminated);
}

TEST_CASE("The error for many rows names a contradictory row") {
  const Spec spec = spec_of(true, true, true);
  const char rows[] = {0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1};
  const std::vector<Column> columns{{rows, 3}, {rows + 1, 3}, {rows + 2, 3}};
  const Endings endings(spec);
  CHECK(text_of(endings.of(columns, 2, 4)).starts_with("row 2 has terminated = false"));
  CHECK(endings.of(columns, 0, 4).value() == Ending::kNone);
  CHECK(endings.of(columns, 1, 4).value() == Ending::kTerminated);
  CHECK(endings.of(columns, 3, 4).value() == Ending::kTruncated);
}

// guarantee: replay-truncated-rows
TEST_CASE("A truncated row and its stream wait for the last observation") {
  for (const std::uint64_t rows_per_chunk : {1u, 2u, 8u}) {
    const auto store = new_store({.capacity = 64, .rows_per_chunk = rows_per_chunk, .ahead = 2, .finals = true});
    Writer writer(store, 1);
    test::add(writer, 0).value();
    const std::uint64_t last = test::add(writer, 1, {.done = true, .truncated = true}).value();
    CHECK(writer.has_ended());
    CHECK(store->size() == 0);
    CHECK(test::add(writer, 2).code() == Code::kInvalid);
    CHECK(writer.end({}, false, patience()).code() == Code::kInvalid);
    const std::vector<test::Row> rows{test::Row(2)};
    const auto columns = test::columns_of(rows);
    CHECK(writer.extend({.columns = columns, .count = 1}, nullptr, patience()).code() == Code::kInvalid);
    CHECK((writer.added() == 2 && store->size() == 0));
    REQUIRE(test::end_with(writer, 7).ok());
    CHECK(store->size() == 2);
    const test::Slot at{last / rows_per_chunk, last % rows_per_chunk};
    CHECK(at.bit(store->info(at.ticket).truncated) == 1);
    CHECK(test::number_in(*store, at.next(*store)) == 7);
    test::add(writer, 2).value();
    writer.close();
    CHECK(store->size() == 2);
    CHECK(check_rows(*store).empty());
  }
}

TEST_CASE("end can truncate a done row but not a terminated row") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8, .ahead = 1, .finals = true});
  Writer writer(store, 1);
  const auto was_cut = [&](std::uint64_t index) {
    return platform::load_relaxed(store->info(index / 8).truncated) >> index % 8 & 1;
  };
  const auto sure = test::add(writer, 0, {.done = true, .truncated = false, .terminated = true}).value();
  REQUIRE(test::end_with(writer, 1, true).ok());
  CHECK(was_cut(sure) == 0);
  const auto done = test::add(writer, 2, {.done = true}).value();
  REQUIRE(test::end_with(writer, 3, true).ok());
  CHECK(was_cut(done) == 1);
  const std::vector<test::Row> rows{test::Row(4), test::Row(5)};
  const auto columns = test::columns_of(rows);
  const RowInfo cut{.done = true, .truncated = true}, over{.done = true, .terminated = true};
  std::uint64_t indices[2];
  const auto extend = [&](const RowInfo& one, const RowInfo& two) {
    const RowInfo infos[] = {one, two};
    return writer.extend({.columns = columns, .count = 2, .infos = infos}, indices, patience());
  };
  CHECK(extend(cut, cut).code() == Code::kInvalid);
  REQUIRE(extend({}, over).ok());
  CHECK(writer.has_ended());
  REQUIRE(test::end_with(writer, 6, true).ok());
  CHECK(was_cut(indices[1]) == 0);
  REQUIRE(extend({}, cut).ok());
  CHECK(test::add(writer, 7).code() == Code::kInvalid);
  REQUIRE(test::end_with(writer, 8).ok());
  CHECK(was_cut(indices[1]) == 1);
  CHECK(store->size() == 6);
  CHECK(check_rows(*store).empty());
}
