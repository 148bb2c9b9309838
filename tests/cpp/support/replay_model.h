// A naive model of a replay buffer: lists of episodes. The real buffer must return the same results.
#pragma once

#include <cmath>
#include <map>
#include <random>

#include "replay/rows/gather.h"
#include "support/replays.h"

namespace shmtree::test {

// Number, reward twice, frame.
constexpr std::array<std::uint64_t, 4> kModelLeaves{8, 4, 8, 300};

struct ModelRow {
  std::uint64_t number = 0;
  float reward = 0;
  double reward_too = 0;
  std::array<unsigned char, 300> frame{};

  explicit ModelRow(std::uint64_t value)
      : number(value), reward(static_cast<float>(value % 17)), reward_too(static_cast<double>(value % 23)) {
    frame.fill(static_cast<unsigned char>(value));
  }
  std::array<replay::Column, 4> leaves() const { return {&number, &reward, &reward_too, frame.data()}; }
};

// An episode of one writer. Row numbers ascend within it, including the last observation.
struct ModelEpisode {
  std::vector<std::uint64_t> numbers, indices;  // of its rows; `numbers` includes the last observation
  std::uint64_t ready = 0;                      // number of rows that may be sampled
  bool over = false, truncated = false, dropped = false;
  std::optional<std::uint64_t> final;
};

struct Expected {
  std::uint64_t number = 0, successor = 0;
  std::vector<std::optional<std::uint64_t>> stack{}, successor_stack{};  // oldest first; nullopt is padding
  double reward = 0, reward_too = 0, discount = 0;
  std::uint64_t stream = 0, step = 0;
  std::uint64_t earliest = 0;  // smallest index of the rows in the stacks
};

struct ModelOptions {
  std::uint32_t n_step = 1;
  bool finals = false;
  std::uint32_t frames = 3;
  double gamma = 0.9;
  std::uint64_t ahead() const { return finals ? n_step : n_step - 1; }
};

class ModelWriter {
 public:
  ModelWriter(const ModelOptions& options, std::uint64_t stream) : options_(options), stream_(stream) {}

  // --- Actions

  void added(std::uint64_t number, std::uint64_t index, bool done, bool truncated) {
    if (pending_) over(false);
    if (episodes_.empty() || episodes_.back().over || episodes_.back().dropped) episodes_.emplace_back();
    ModelEpisode& episode = episodes_.back();
    episode.numbers.push_back(number);
    episode.indices.push_back(index);
    where_[index] = {episodes_.size() - 1, episode.numbers.size() - 1, rows_++};
    const std::uint64_t rows = episode.numbers.size();
    if (rows > options_.ahead()) episode.ready = std::max(episode.ready, rows - options_.ahead());
    if (!done) return;
    episode.truncated = truncated;
    pending_ = options_.finals;
    if (!options_.finals) over(truncated);
  }
  void ended(std::optional<std::uint64_t> final, bool truncated) {
    if (episodes_.empty() || episodes_.back().over || episodes_.back().dropped) return;
    episodes_.back().final = final;
    over(truncated);
  }
  void closed() {
    if (pending_) return over(false);
    if (!episodes_.empty() && !episodes_.back().over) episodes_.back().dropped = true;
  }

  // --- Expected results

  struct Where {
    std::size_t episode, at;
    std::uint64_t step;
  };
  const std::map<std::uint64_t, Where>& rows() const { return where_; }
  bool is_ready(const Where& where) const { return where.at < episodes_[where.episode].ready; }
  const ModelEpisode& episode(const Where& where) const { return episodes_[where.episode]; }

  // Returns the indices of a sequence that begins with this row.
  std::vector<std::uint64_t> sequence(const Where& where, std::size_t length, std::size_t stride) const {
    const ModelEpisode& episode = episodes_[where.episode];
    std::vector<std::uint64_t> indices;
    for (std::size_t at = where.at; at < episode.ready && indices.size() < length; at += stride) {
      indices.push_back(episode.indices[at]);
    }
    return indices;
  }
  // Returns the indices of the `count` rows before this row, in steps of `stride`, and 0 for each row that does not
  // exist.
  std::vector<std::uint64_t> before(const Where& where, std::size_t count, std::size_t stride,
                                    const replay::Shape& shape, std::uint64_t head) const {
    std::vector<std::uint64_t> indices(count);
    for (std::size_t i = 1; i <= count && i * stride <= where.at; ++i) {
      const std::uint64_t index = episodes_[where.episode].indices[where.at - i * stride];
      if (shape.ticket_of(index) >= head) indices[count - i] = index;
    }
    return indices;
  }
  const std::vector<ModelEpisode>& episodes() const { return episodes_; }
  Expected expected(const Where& where) const {
    const ModelEpisode& episode = episodes_[where.episode];
    const std::size_t rows = episode.numbers.size(), n = std::min<std::size_t>(options_.n_step, rows - where.at);
    const bool ended = where.at + options_.n_step >= rows && episode.over;
    Expected result{.number = episode.numbers[where.at], .stream = stream_, .step = where.step};
    for (std::size_t i = 0; i < n; ++i) {
      const ModelRow row(episode.numbers[where.at + i]);
      result.reward += std::pow(options_.gamma, i) * static_cast<double>(row.reward);
      result.reward_too += std::pow(options_.gamma, i) * row.reward_too;
    }
    result.discount = ended && !episode.truncated ? 0 : std::pow(options_.gamma, n);
    std::size_t after = where.at + options_.n_step;
    if (after >= rows) after = episode.final ? rows : rows - 1;
    if (options_.finals) result.successor = after == rows ? *episode.final : episode.numbers[after];
    result.earliest = episode.indices[where.at];
    result.stack = stack(episode, where.at, result.earliest);
    if (options_.finals) result.successor_stack = stack(episode, after, result.earliest);
    return result;
  }

 private:
  void over(bool truncated) {
    ModelEpisode& episode = episodes_.back();
    episode.over = true;
    episode.truncated = episode.truncated || truncated;
    episode.ready = episode.numbers.size();
    pending_ = false;
  }
  std::vector<std::optional<std::uint64_t>> stack(const ModelEpisode& episode, std::size_t at,
                                                  std::uint64_t& earliest) const {
    std::vector<std::optional<std::uint64_t>> frames(options_.frames);
    for (std::size_t i = 0; i < options_.frames && i <= at; ++i) {
      const bool is_final = at - i == episode.numbers.size();
      frames[options_.frames - 1 - i] = is_final ? *episode.final : episode.numbers[at - i];
      if (!is_final) earliest = std::min(earliest, episode.indices[at - i]);
    }
    return frames;
  }

  const ModelOptions options_;
  const std::uint64_t stream_;
  std::vector<ModelEpisode> episodes_;
  std::map<std::uint64_t, Where> where_;  // by index
  std::uint64_t rows_ = 0;
  bool pending_ = false;  // the last row ended the episode, and its last observation may still follow
};

// A batch with every optional part, and its comparison with the expected values.
struct ModelBatch {
  replay::Gather gather;
  std::vector<std::vector<std::byte>> out;
  std::unique_ptr<bool[]> gone;

  static replay::Gather gather_of(const std::shared_ptr<Store>& store, const ModelOptions& options) {
    using replay::OutputKind;
    replay::GatherOptions all{.n_step = options.n_step, .gamma = options.gamma};
    all.outputs = {{.kind = OutputKind::kHere, .leaf = 0},
                   {.kind = OutputKind::kHere, .leaf = 3},
                   {.kind = OutputKind::kStack, .leaf = 0, .frames = options.frames},
                   {.kind = OutputKind::kStack, .leaf = 3, .frames = options.frames, .repeats_first = true},
                   {.kind = OutputKind::kRewardSum, .leaf = 1},
                   {.kind = OutputKind::kRewardSum, .leaf = 2, .is_double = true},
                   {.kind = OutputKind::kDiscount},
                   {.kind = OutputKind::kDiscount, .is_double = true},
                   {.kind = OutputKind::kStream},
                   {.kind = OutputKind::kStep}};
    if (options.finals) {
      all.outputs.push_back({.kind = OutputKind::kSuccessor, .leaf = 0});
      all.outputs.push_back({.kind = OutputKind::kSuccessor, .leaf = 3});
      all.outputs.push_back({.kind = OutputKind::kSuccessorStack, .leaf = 0, .frames = options.frames});
    }
    return replay::Gather::create(store, all).value();
  }
  ModelBatch(const std::shared_ptr<Store>& store, const ModelOptions& options) : gather(gather_of(store, options)) {}

  void read(std::span<const std::uint64_t> indices, unsigned threads = 1) {
    out.clear();
    std::vector<std::byte*> places;
    for (std::size_t i = 0; i < gather.options().outputs.size(); ++i) {
      out.emplace_back(gather.bytes(i) * indices.size() + 1, std::byte{0xcd});
      places.push_back(out.back().data());
    }
    gone = std::make_unique<bool[]>(indices.size());
    gather.read(indices, places, {gone.get(), indices.size()}, threads).value();
  }
  template <class Number>
  Number number(std::size_t output, std::size_t at) const {
    Number value;
    std::memcpy(&value, out[output].data() + at * sizeof value, sizeof value);
    return value;
  }
  bool is_frame(std::size_t output, std::size_t at, std::uint64_t value) const {
    const ModelRow row(value);
    return std::memcmp(out[output].data() + at * sizeof row.frame, row.frame.data(), sizeof row.frame) == 0;
  }
  bool is_stack(std::size_t output, std::size_t at, const std::vector<std::optional<std::uint64_t>>& frames) const {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      if (number<std::uint64_t>(output, at * frames.size() + i) != frames[i].value_or(0)) return false;
    }
    return true;
  }
  bool is_filled_stack(std::size_t output, std::size_t at,
                       const std::vector<std::optional<std::uint64_t>>& frames) const {
    std::uint64_t first = 0;
    for (const auto& frame : frames) {
      if (frame) {
        first = *frame;
        break;
      }
    }
    for (std::size_t i = 0; i < frames.size(); ++i) {
      if (!is_frame(output, at * frames.size() + i, frames[i].value_or(first))) return false;
    }
    return true;
  }
  bool is(std::size_t at, const Expected& row) const {
    const auto close = [](double a, double b) { return std::abs(a - b) < 1e-5 * (1 + std::abs(b)); };
    const bool plain =
        number<std::uint64_t>(0, at) == row.number && is_frame(1, at, row.number) && is_stack(2, at, row.stack) &&
        is_filled_stack(3, at, row.stack) && close(static_cast<double>(number<float>(4, at)), row.reward) &&
        close(number<double>(5, at), row.reward_too) &&
        close(static_cast<double>(number<float>(6, at)), row.discount) && close(number<double>(7, at), row.discount) &&
        number<std::uint64_t>(8, at) == row.stream && number<std::uint64_t>(9, at) == row.step;
    if (row.successor_stack.empty()) return plain;
    return plain && number<std::uint64_t>(10, at) == row.successor && is_frame(11, at, row.successor) &&
           is_stack(12, at, row.successor_stack);
  }
};

}  // namespace shmtree::test
