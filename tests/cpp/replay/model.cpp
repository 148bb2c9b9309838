// Compares all outputs of a batch with a model, lists of episodes, under random actions of several writers.
#include <random>
#include <set>

#include "replay/sampling/sequence_sampler.h"
#include "support/catch2.h"
#include "support/replay_model.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

class Trial {
 public:
  Trial(unsigned seed, const ModelOptions& options, const ShapeOptions& shape) : random_(seed), options_(options) {
    store_ = Store::create(new_arena(), replay::shape_of(kModelLeaves, shape).value(), {}, patience()).value();
    stacking_ = Store::open(store_->arena(), store_->block(), kModelLeaves, patience()).value();
    stacking_->set_frames(options.frames);
    batch_ = std::make_unique<ModelBatch>(store_, options);
    for (std::uint32_t stream = 1; stream <= 3; ++stream) {
      writers_.push_back(std::make_unique<Writer>(store_, stream));
      models_.emplace_back(options, stream);
    }
  }

  void act() {
    const std::size_t number = below(3) == 0 ? below(3) : 0;  // writers 1 and 2 act rarely
    Writer& writer = *writers_[number];
    ModelWriter& model = models_[number];
    const std::uint64_t what = below(100);
    if (what < 75) return add(writer, model);
    if (what < 85) return extend(writer, model);
    if (what < 97) return end(writer, model);
    writer.close();
    model.closed();
  }

  // Checks every row that was ever added: it has the right values if it must still exist, and is not found otherwise.
  bool is_right() {
    const std::uint64_t head = store_->window().head;
    const Shape& shape = store_->shape();
    std::uint64_t there = 0, drawable = 0;
    for (const ModelWriter& model : models_) {
      std::vector<std::uint64_t> indices;
      for (const auto& [index, where] : model.rows()) indices.push_back(index);
      batch_->read(indices, 1 + static_cast<unsigned>(below(2)));
      std::size_t at = 0;
      for (const auto& [index, where] : model.rows()) {
        const bool is_there = shape.ticket_of(index) >= head && model.is_ready(where);
        there += is_there;
        drawable += is_there && !batch_->gone[at];
        if (store_->has_row(shape.ticket_of(index), shape.slot_of(index)) != is_there) return false;
        if (is_there) {
          const Expected row = model.expected(where);
          if (batch_->gone[at] != (shape.ticket_of(row.earliest) < head)) return false;
          if (!batch_->gone[at] && !batch_->is(at, row)) return false;
        } else if (!batch_->gone[at]) {
          return false;
        }
        ++at;
      }
    }
    if (stacking_->size() != drawable) return false;
    return store_->size() == there && check_rows(*store_).empty() && sequences_are_right(there) &&
           episodes_are_right(head);
  }

  bool sequences_are_right(std::uint64_t there) {
    const std::size_t burn_in = below(2) * below(12), length = burn_in + 1 + below(12), stride = 1 + below(3),
                      count = 10;
    const std::uint64_t head = store_->window().head;
    const auto mask = std::make_unique<bool[]>(count * length);
    std::vector<std::uint64_t> indices(count * length);
    replay::SequenceSampler sequences(store_, {.length = length, .stride = stride, .burn_in = burn_in}, random_());
    const Status sampled = sequences.sample(indices, {mask.get(), count * length});
    if (there == 0) return sampled.code() == Code::kEmpty;
    for (std::size_t at = 0; at < count * length; at += length) {
      std::vector<std::uint64_t> expected;
      for (const ModelWriter& model : models_) {
        const auto found = model.rows().find(indices[at + burn_in]);
        if (found == model.rows().end()) continue;
        expected = model.before(found->second, burn_in, stride, store_->shape(), head);
        std::ranges::copy(model.sequence(found->second, length - burn_in, stride), std::back_inserter(expected));
      }
      if (expected.size() <= burn_in) return false;
      expected.resize(length);
      for (std::size_t row = 0; row < length; ++row) {
        if (mask[at + row] != (expected[row] != 0) || indices[at + row] != expected[row]) return false;
      }
    }
    return true;
  }

  // Samples each whole episode once.
  bool episodes_are_right(std::uint64_t head) {
    const std::size_t length = 1 + below(20);
    std::set<std::vector<std::uint64_t>> whole, sampled;
    for (const ModelWriter& model : models_) {
      for (const ModelEpisode& episode : model.episodes()) {
        const bool is_there = episode.over && store_->shape().ticket_of(episode.indices.front()) >= head;
        if (is_there && episode.indices.size() <= length) whole.insert(episode.indices);
      }
    }
    const std::size_t rows = std::max<std::size_t>(whole.size(), 1) * length;
    std::vector<std::uint64_t> indices(rows);
    const auto mask = std::make_unique<bool[]>(rows);
    const replay::SequenceOptions options{.length = length, .partial = replay::Partial::kWhole, .distinct = true};
    const Status status = replay::SequenceSampler(store_, options, random_()).sample(indices, {mask.get(), rows});
    if (whole.empty()) return status.code() == Code::kEmpty;
    if (!status) return false;
    for (std::size_t at = 0; at < rows; at += length) {
      const auto count = std::count(&mask[at], &mask[at] + length, true);
      const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(at);
      if (std::any_of(begin + count, begin + static_cast<std::ptrdiff_t>(length), [](auto i) { return i != 0; }))
        return false;
      sampled.emplace(begin, begin + count);
    }
    return sampled == whole;
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void add(Writer& writer, ModelWriter& model) {
    const ModelRow row(++number_);
    const bool done = below(8) == 0, truncated = done && !options_.finals && below(2) == 0;
    const auto index = writer.add(row.leaves(), {.done = done, .truncated = truncated}, patience());
    model.added(number_, index.value(), done, truncated);
  }
  void extend(Writer& writer, ModelWriter& model) {
    const std::size_t count = 1 + below(30);
    std::vector<ModelRow> rows;
    std::vector<std::array<unsigned char, 300>> frames;
    std::vector<RowInfo> infos(count);
    for (std::size_t i = 0; i < count; ++i) {
      rows.emplace_back(++number_);
      frames.push_back(rows.back().frame);
      infos[i].done = below(6) == 0;
      infos[i].truncated = infos[i].done && !options_.finals && below(2) == 0;
    }
    const auto column = [&](const auto& first) { return replay::Column(&first, sizeof(ModelRow)); };
    std::vector<replay::Column> columns{column(rows[0].number), column(rows[0].reward), column(rows[0].reward_too),
                                        column(rows[0].frame)};
    if (below(2) == 0) columns[3] = {frames.data(), 300};
    const bool ends = below(3) != 0;
    std::vector<std::uint64_t> indices(count);
    writer
        .extend({.columns = columns, .count = count, .infos = ends ? infos.data() : nullptr}, indices.data(),
                patience())
        .value();
    for (std::size_t i = 0; i < count; ++i) {
      model.added(rows[i].number, indices[i], ends && infos[i].done, ends && infos[i].truncated);
    }
  }
  void end(Writer& writer, ModelWriter& model) {
    const bool final = options_.finals && below(3) != 0, truncated = below(2) == 0 && (final || !options_.finals);
    if (final) {
      const ModelRow row(++number_);
      writer.end(row.leaves(), truncated, patience()).value();
      model.ended(number_, truncated);
    } else {
      writer.end({}, truncated, patience()).value();
      model.ended({}, truncated);
    }
  }

  std::mt19937 random_;
  const ModelOptions options_;
  std::shared_ptr<Store> store_, stacking_;  // the same buffer; stacking_ counts only rows with all frames
  std::unique_ptr<ModelBatch> batch_;
  std::vector<std::unique_ptr<Writer>> writers_;
  std::vector<ModelWriter> models_;
  std::uint64_t number_ = 0;
};

}  // namespace

// guarantee: replay-len, replay-successors
TEST_CASE("Batches match a model of episodes for several writers") {
  for (const ModelOptions& options :
       {ModelOptions{.n_step = 1}, ModelOptions{.n_step = 3}, ModelOptions{.n_step = 10},
        ModelOptions{.n_step = 1, .finals = true}, ModelOptions{.n_step = 3, .finals = true, .frames = 5}}) {
    for (const std::uint64_t rows_per_chunk : {1u, 2u, 8u}) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        const ShapeOptions shape{.capacity = seed % 2 == 0 ? 40u : 200u,
                                 .rows_per_chunk = rows_per_chunk,
                                 .streams = 3,
                                 .ahead = options.ahead(),
                                 .finals = options.finals};
        Trial trial(seed, options, shape);
        INFO("seed " << seed << ", chunks of " << rows_per_chunk << ", " << options.n_step << " steps, "
                     << (options.finals ? "with" : "without") << " last observations");
        for (int i = 0; i < 20; ++i) {
          for (int j = 0; j < 20; ++j) trial.act();
          REQUIRE(trial.is_right());
        }
      }
    }
  }
}
