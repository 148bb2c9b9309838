// The specification of a buffer, and its note.
#include "replay/buffer/spec.h"

#include <limits>
#include <random>

#include "support/catch2.h"
#include "support/versions.h"

using namespace shmtree;
using namespace shmtree::replay;
using Form = SpecPart::Form;

namespace {

SpecPart leaf(std::size_t number) {
  return {.leaf = number};
}
SpecPart::Key key(const char* text) {
  return {.bytes = text};
}

// {"obs": {"image": ..., 7: ...}, "reward": ..., "done": ..., "more": [..., (...,)]}, with every option set.
Spec rich() {
  Spec spec;
  const SpecPart obs{
      .form = Form::kDict, .keys = {key("image"), {.bytes = "7", .is_text = false}}, .parts = {leaf(0), leaf(1)}};
  const SpecPart tuple{.form = Form::kTuple, .parts = {leaf(5)}};
  const SpecPart more{.form = Form::kList, .parts = {leaf(4), tuple}};
  spec.row = {.form = Form::kDict,
              .keys = {key("obs"), key("reward"), key("done"), key("more"), key("terminated"), key("truncated")},
              .parts = {obs, leaf(2), leaf(3), more, leaf(6), leaf(7)}};
  spec.leaves = {{"|u1", 1, {84, 84}}, {"<f8", 8, {}}, {"<f4", 4, {}}, {"|b1", 1, {}},
                 {"<M8[s]", 8, {2}},   {"<i8", 8, {}}, {"<f8", 8, {}}, {"|b1", 1, {}}};
  spec.samplers = {{"per", {.kind = SamplerKind::kPrioritized, .alpha = 0.5, .beta = 0.25, .eps = 0.125}},
                   {"all", {.kind = SamplerKind::kUniform, .max_times = 7}}};
  spec.next = {0, 1};
  spec.n_step = 3;
  spec.gamma = 0.75;
  spec.stack = {{0, 4}};
  spec.repeats_first = true;
  spec.reward = 2;
  spec.done = 3;
  spec.terminated = 6;
  spec.truncated = 7;
  spec.limit = RateLimit{.samples_per_insert = 8, .min_size = 20, .error_buffer = 40};
  spec.raises_on_death = true;
  return spec;
}

Result<Spec> unpacked(const std::string& note) {
  return unpack(std::as_bytes(std::span(note)));
}

// Returns true if check() refuses the changed specification.
template <class Change>
bool is_refused(Change change) {
  Spec spec = rich();
  change(spec);
  return check(spec).ok() == false && unpacked(pack(spec)).code() == Code::kIncompatible;
}

}  // namespace

TEST_CASE("a note preserves the whole specification") {
  const Spec spec = rich();
  REQUIRE(check(spec).ok());
  const Spec again = unpacked(pack(spec)).value();
  CHECK((again.row == spec.row && again.leaves == spec.leaves));
  CHECK((again.next == spec.next && again.stack == spec.stack && again.repeats_first));
  CHECK((again.n_step == 3 && again.gamma == 0.75 && again.reward == spec.reward && again.done == spec.done));
  REQUIRE(again.samplers.size() == 2);
  CHECK((again.samplers[0].first == "per" && again.samplers[0].second.eps == 0.125));
  CHECK((again.samplers[1].first == "all" && again.samplers[1].second.max_times == 7));
  CHECK((again.limit && again.limit->min_size == 20 && again.limit->error_buffer == 40));
  CHECK((again.raises_on_death && again.terminated == spec.terminated && again.truncated == spec.truncated));
  Spec plain = spec;
  plain.next.clear();
  plain.stack.clear();
  plain.n_step = 1;
  plain.done.reset(), plain.terminated.reset(), plain.truncated.reset();
  for (const bool unknown : {false, true}) {
    plain.ends_unknown = unknown;
    CHECK(unpacked(pack(plain)).value().ends_unknown == unknown);
  }
  CHECK(pack(again) == pack(spec));
}

TEST_CASE("notes of earlier versions can be read") {
  std::string note = pack(rich());
  note[sizeof(std::uint64_t)] = 2;
  CHECK(unpacked(note).code() == Code::kIncompatible);  // version 2 has three numbers fewer
  note.resize(note.size() - 3 * sizeof(std::uint64_t));
  Spec before = unpacked(note).value();
  CHECK((before.raises_on_death && before.done == 3u && !before.terminated && !before.truncated));
  CHECK_FALSE(before.ends_unknown);
  note[sizeof(std::uint64_t)] = 1;
  CHECK(unpacked(note).code() == Code::kIncompatible);  // version 1 has one number fewer than version 2
  note.resize(note.size() - sizeof(std::uint64_t));
  before = unpacked(note).value();
  CHECK((before.limit && before.limit->min_size == 20 && !before.raises_on_death));
  note[sizeof(std::uint64_t)] = 4;
  CHECK(test::names_versions(unpacked(note).error(), 4, 3));
}

TEST_CASE("the specification determines the outputs of a batch") {
  const Spec spec = rich();
  CHECK((spec.ahead() == 3 && spec.has_finals() && spec.has_discount()));
  CHECK(spec.leaf_bytes() == std::vector<std::uint64_t>{84 * 84, 8, 4, 1, 16, 8, 8, 1, 8});
  const GatherOptions options = spec.outputs();
  REQUIRE(options.outputs.size() == 14);
  CHECK((options.outputs[0].kind == OutputKind::kStack && options.outputs[0].frames == 4 &&
         options.outputs[0].repeats_first));
  CHECK((options.outputs[2].kind == OutputKind::kRewardSum && !options.outputs[2].is_double));
  CHECK((options.outputs[8].kind == OutputKind::kSuccessorStack && options.outputs[9].kind == OutputKind::kSuccessor));
  CHECK((options.outputs[10].leaf == 8 && options.outputs[13].kind == OutputKind::kDiscount));
  CHECK(spec.output(0).shape == std::vector<std::uint64_t>{4, 84, 84});
  CHECK(spec.output(9).dtype == "<f8");
}

TEST_CASE("invalid specifications are refused also when in a note") {
  CHECK(is_refused([](Spec& spec) { spec.leaves[0].shape[0] = 0; }));
  CHECK(is_refused([](Spec& spec) { spec.leaves[0].shape[0] = ~std::uint64_t{0}; }));
  CHECK(is_refused([](Spec& spec) { spec.leaves[0].shape.assign(29, 1); }));
  CHECK(is_refused([](Spec& spec) { spec.leaves[1].item_bytes = 4; }));
  CHECK(is_refused([](Spec& spec) { spec.leaves.pop_back(); }));
  CHECK(is_refused([](Spec& spec) { spec.row.keys[1] = spec.row.keys[0]; }));
  CHECK(is_refused([](Spec& spec) { spec.samplers.clear(); }));
  CHECK(is_refused([](Spec& spec) { spec.samplers[1].first = "per"; }));
  CHECK(is_refused([](Spec& spec) { spec.samplers[1].second.kind = static_cast<SamplerKind>(6); }));
  CHECK(is_refused([](Spec& spec) { spec.samplers[0].second.eps = -1; }));
  CHECK(is_refused([](Spec& spec) { spec.next = {1, 0}; }));
  CHECK(is_refused([](Spec& spec) { spec.next = {8}; }));
  CHECK(is_refused([](Spec& spec) { spec.terminated = 8; }));
  CHECK(is_refused([](Spec& spec) { spec.truncated = 4; }));
  CHECK(is_refused([](Spec& spec) { spec.ends_unknown = true; }));
  CHECK(is_refused([](Spec& spec) { spec.stack[0].second = 1025; }));
  CHECK(is_refused([](Spec& spec) { spec.n_step = 0; }));
  CHECK(is_refused([](Spec& spec) { spec.gamma = std::numeric_limits<double>::infinity(); }));
  CHECK(is_refused([](Spec& spec) { spec.reward.reset(); }));
  CHECK(is_refused([](Spec& spec) { spec.reward = 3; }));
  CHECK(is_refused([](Spec& spec) { spec.done = 0; }));
  CHECK(is_refused([](Spec& spec) { spec.limit->samples_per_insert = 0; }));
}

TEST_CASE("a damaged note is refused or contains a valid spec") {
  const std::string note = pack(rich());
  for (std::size_t bytes = 0; bytes < note.size(); ++bytes) {
    REQUIRE(unpacked(note.substr(0, bytes)).code() == Code::kIncompatible);
  }
  CHECK(unpacked(note + '\0').code() == Code::kIncompatible);
  std::minstd_rand random(7);
  for (std::size_t i = 0; i < 20'000; ++i) {
    std::string altered = note;
    altered[random() % note.size()] ^= static_cast<char>(1 << random() % 8);
    const auto found = unpacked(altered);
    if (found.ok()) {
      REQUIRE(check(*found).ok());
    } else {
      REQUIRE(found.code() == Code::kIncompatible);
    }
  }
}
