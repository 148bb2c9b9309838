#include "replay/sampling/sequence_sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace shmtree::replay {

namespace {

constexpr int kMaxTries = 4096;      // attempts to find a first row that is followed by enough rows
constexpr std::size_t kAtOnce = 32;  // first rows with prefetched words
constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 32;

}  // namespace

Error SequenceSampler::too_short() const {
  if (options_.partial == Partial::kWhole) {
    return Error{.code = Code::kEmpty,
                 .message = "no whole episode of at most " + std::to_string(options_.length) + " rows"};
  }
  return Error{.code = Code::kEmpty,
               .message = "no sequence of " + std::to_string(options_.length - options_.burn_in) + " rows: in " +
                          std::to_string(kMaxTries) +
                          " tries, every sampled row was too close to the end of its episode"};
}

// Writes the sequence of the row `first`. Returns false if it is too short.
bool SequenceSampler::follow(std::uint64_t first, std::span<std::uint64_t> indices,
                             std::span<bool> mask) const noexcept {
  const Shape& shape = store_->shape();
  const Position at{shape.ticket_of(first), static_cast<std::uint32_t>(shape.slot_of(first))};
  const Chain chain(*store_);
  const std::span before = indices.first(options_.burn_in), after = indices.subspan(options_.burn_in);
  const std::size_t rows = chain.follow(at, options_.stride, after);
  if (rows == 0 || (rows < after.size() && options_.partial == Partial::kRefuse)) return false;
  const std::size_t earlier = before.empty() ? 0 : chain.follow_back(at, options_.stride, before);
  std::ranges::fill(before.first(before.size() - earlier), 0);
  std::ranges::fill(after.subspan(rows), 0);
  std::ranges::transform(indices, mask.begin(), [](std::uint64_t index) { return index != 0; });
  return true;
}

// Finds the last rows of all episodes.
void SequenceSampler::find_ends() {
  ends_.clear();
  const Window window = store_->window();
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    Chain(*store_).each_end(ticket, [&](Position at) { ends_.push_back(at); });
  }
}

// Samples one of the episodes in `ends_`. Removes it if it is not whole or too long, and after it was sampled if the
// episodes have to be distinct.
Status SequenceSampler::sample_whole(std::span<std::uint64_t> indices, std::span<bool> mask) {
  const Shape& shape = store_->shape();
  while (!ends_.empty()) {
    Position& chosen = ends_[random_.below(ends_.size())];
    const Position end = chosen, begin = Chain(*store_).begin_of(end);
    const bool is_there = begin.ticket != 0 && follow(shape.index_of(begin.ticket, begin.slot), indices, mask);
    const bool is_whole = is_there && *std::ranges::max_element(indices) == shape.index_of(end.ticket, end.slot);
    if (!is_whole || options_.distinct) {
      chosen = ends_.back();
      ends_.pop_back();
    }
    if (is_whole) return success();
  }
  return too_short();
}

// Chooses random rows of the window, and prefetches the state of their chunks.
void SequenceSampler::choose(std::span<std::uint64_t> first) noexcept {
  const Shape& shape = store_->shape();
  const Window window = store_->window();
  const std::uint64_t begin = shape.index_of(window.head, 0), count = shape.index_of(window.tail, 0) - begin;
  for (std::uint64_t& index : first) {
    index = count == 0 ? 0 : begin + random_.below(count);
    if (count != 0) store_->fetch_words(shape.ticket_of(index), true);
  }
}

Status SequenceSampler::sample_one(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask) {
  if (options_.partial == Partial::kWhole) return sample_whole(indices, mask);
  const Shape& shape = store_->shape();
  for (int tries = 0; tries < kMaxTries; ++tries, first = 0) {
    const bool is_there = first != 0 && store_->has_row(shape.ticket_of(first), shape.slot_of(first));
    if (!is_there) first = random_row(*store_, random_);
    if (first == 0) return Error{.code = Code::kEmpty, .message = "there are no rows to sample"};
    if (follow(first, indices, mask)) return success();
  }
  return too_short();
}

Status SequenceSampler::check(std::size_t indices, std::size_t mask) const {
  const std::uint64_t length = options_.length;
  const bool is_stride = options_.stride != 0 && options_.stride <= kMaxStride;
  const bool is_length = options_.burn_in < length && (options_.burn_in == 0 || options_.partial != Partial::kWhole);
  if (is_length && is_stride && indices == mask && indices % length == 0) return success();
  return Error{.code = Code::kInvalid,
               .message = "cannot write sequences of " + std::to_string(length) + " rows with stride " +
                          std::to_string(options_.stride) + " and a burn-in of " + std::to_string(options_.burn_in) +
                          " to " + std::to_string(indices) + " indices"};
}

Status SequenceSampler::sample(std::span<std::uint64_t> indices, std::span<bool> mask) try {
  Status fits = check(indices.size(), mask.size());
  if (!fits) return fits;
  const std::uint64_t length = options_.length;
  if (options_.partial == Partial::kWhole) find_ends();
  std::array<std::uint64_t, kAtOnce> first;
  for (std::size_t at = 0; at < indices.size(); at += length) {
    const std::size_t turn = at / length % kAtOnce;
    if (turn == 0) choose(std::span(first).first(std::min(kAtOnce, (indices.size() - at) / length)));
    Status sampled = sample_one(first[turn], indices.subspan(at, length), mask.subspan(at, length));
    if (!sampled && options_.distinct && at != 0) {
      return Error{.code = Code::kInvalid,
                   .message = "cannot sample " + std::to_string(indices.size() / length) +
                              " different episodes of at " + "most " + std::to_string(length) +
                              " rows: there are only " + std::to_string(at / length)};
    }
    if (!sampled) return sampled;
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Returns true if the sequence at `at` lost one of its rows before it was copied. Of the burn-in, such rows count as
// not there.
bool SequenceSampler::drop_lost(const Gather& gather, std::size_t at, std::span<std::uint64_t> indices,
                                std::span<bool> mask, std::span<const bool> gone,
                                std::span<std::byte* const> out) const noexcept {
  for (std::size_t row = at + options_.burn_in; row < at + options_.length; ++row) {
    if (mask[row] && gone[row]) return true;
  }
  for (std::size_t row = at; row < at + options_.burn_in; ++row) {
    if (!mask[row] || !gone[row]) continue;
    mask[row] = false;
    indices[row] = 0;
    for (std::size_t i = 0; i < out.size(); ++i) std::memset(out[i] + row * gather.bytes(i), 0, gather.bytes(i));
  }
  return false;
}

Status SequenceSampler::sample(const Gather& gather, std::span<std::uint64_t> indices, std::span<bool> mask,
                               std::span<std::byte* const> out, unsigned threads) try {
  Status sampled = sample(indices, mask);
  if (!sampled) return sampled;
  const auto gone = std::make_unique<bool[]>(indices.size());
  auto lost = gather.read(indices, out, {gone.get(), indices.size()}, threads);
  if (!lost) return std::move(lost).error();
  const std::size_t length = options_.length;
  std::vector<std::byte*> to(out.size());
  for (std::size_t at = 0; at < indices.size(); at += length) {
    for (std::size_t i = 0; i < out.size(); ++i) to[i] = out[i] + at * gather.bytes(i);
    while (drop_lost(gather, at, indices, mask, {gone.get(), indices.size()}, out)) {
      sampled = sample_one(indices.subspan(at, length), mask.subspan(at, length));
      if (!sampled) return sampled;
      auto again = gather.read(indices.subspan(at, length), to, {gone.get() + at, length});
      if (!again) return std::move(again).error();
    }
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Follows the marked sequences, and leaves only those marked that are too short. Returns true if there are none.
bool SequenceSampler::follow_marked(const Sample& firsts, std::span<bool> marked, std::span<std::uint64_t> indices,
                                    std::span<bool> mask) const noexcept {
  const std::size_t length = options_.length;
  bool are_all = true;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (!marked[i]) continue;
    const std::size_t at = i * length;
    marked[i] = !follow(firsts.indices[i], indices.subspan(at, length), mask.subspan(at, length));
    are_all = are_all && !marked[i];
  }
  return are_all;
}

Status SequenceSampler::sample(Sampler& sampler, const Sample& firsts, bool distinct, const Gather& gather,
                               std::span<std::uint64_t> indices, std::span<bool> mask, std::span<std::byte* const> out,
                               unsigned threads) try {
  const std::size_t sequences = firsts.indices.size(), length = options_.length;
  const auto marks = std::make_unique<bool[]>(sequences), losses = std::make_unique<bool[]>(indices.size());
  Status sampled = check(indices.size(), mask.size());
  if (sampled) sampled = sampler.sample(firsts, distinct);
  if (!sampled) return sampled;
  const std::span marked(marks.get(), sequences), gone(losses.get(), indices.size());
  std::ranges::fill(marked, true);
  for (int tries = 0; sampled && tries < kMaxTries; ++tries) {
    bool are_all = follow_marked(firsts, marked, indices, mask);
    if (are_all) {
      auto lost = or_out_of_memory([&] { return gather.read(indices, out, gone, threads); });
      if (!lost) sampled = std::move(lost).error();
      for (std::size_t i = 0; lost && i < sequences; ++i) {
        if (drop_lost(gather, i * length, indices, mask, gone, out)) marked[i] = true, are_all = false;
      }
      if (lost && are_all) return success();
    }
    for (std::size_t i = 0; sampled && i < sequences; ++i) {
      if (marked[i]) sampler.put_back({firsts.indices.subspan(i, 1), firsts.weights.subspan(i, 1)});
    }
    if (sampled) sampled = sampler.resample(firsts, marked, distinct);
  }
  // If the sampler failed, the rows that it had to replace were put back before. With weight 0, put_back() skips them.
  for (std::size_t i = 0; i < sequences; ++i) {
    if (!sampled && marked[i]) firsts.weights[i] = 0;
  }
  sampler.put_back(firsts);
  return sampled ? Status(too_short()) : sampled;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
