#include "replay/sequences.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "replay/chain.h"
#include "replay/uniform.h"

namespace shmtree::replay {

namespace {

constexpr int kMostDraws = 4096;     // of a first row that is followed by enough
constexpr std::size_t kAtOnce = 32;  // first rows whose words are asked for
constexpr std::uint64_t kMostStride = std::uint64_t{1} << 32;

}  // namespace

Status Sequences::draw_one(std::uint64_t first, std::span<std::uint64_t> indices, std::span<bool> mask) {
  const Shape& shape = store_->shape();
  for (int draws = 0; draws < kMostDraws; ++draws, first = 0) {
    const bool is_there = first != 0 && store_->has_row(shape.ticket_of(first), shape.slot_of(first));
    if (!is_there) first = draw_uniformly(*store_, random_);
    if (first == 0) return Error{.code = Code::kEmpty, .message = "there are no rows to be drawn"};
    const Position at{shape.ticket_of(first), static_cast<std::uint32_t>(shape.slot_of(first))};
    const std::size_t rows = Chain(*store_).follow(at, options_.stride, indices);
    if (rows == 0 || (rows < indices.size() && options_.partial == Partial::kRefuse)) continue;
    std::fill(indices.begin() + static_cast<std::ptrdiff_t>(rows), indices.end(), 0);
    std::fill(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(rows), true);
    std::fill(mask.begin() + static_cast<std::ptrdiff_t>(rows), mask.end(), false);
    return success();
  }
  return Error{.code = Code::kEmpty,
               .message = "none of " + std::to_string(kMostDraws) + " rows that were drawn is followed by enough for " +
                          std::to_string(options_.length) + " in its episode"};
}

// Rows of the window, if it has any, and asks for what is known of their places.
void Sequences::choose(std::span<std::uint64_t> first) noexcept {
  const Shape& shape = store_->shape();
  const Window window = store_->window();
  const std::uint64_t begin = shape.index_of(window.head, 0), count = shape.index_of(window.tail, 0) - begin;
  for (std::uint64_t& index : first) {
    index = count == 0 ? 0 : begin + random_.below(count);
    if (count != 0) store_->fetch_words(shape.ticket_of(index), true);
  }
}

Status Sequences::draw(std::span<std::uint64_t> indices, std::span<bool> mask) try {
  const std::uint64_t length = options_.length;
  const bool is_stride = options_.stride != 0 && options_.stride <= kMostStride;
  if (length == 0 || !is_stride || indices.size() != mask.size() || indices.size() % length != 0) {
    return Error{.code = Code::kInvalid,
                 .message = "sequences of " + std::to_string(length) + " rows, one in " +
                            std::to_string(options_.stride) + ", for " + std::to_string(indices.size()) + " indices"};
  }
  std::array<std::uint64_t, kAtOnce> first;
  for (std::size_t at = 0; at < indices.size(); at += length) {
    const std::size_t turn = at / length % kAtOnce;
    if (turn == 0) choose(std::span(first).first(std::min(kAtOnce, (indices.size() - at) / length)));
    Status drawn = draw_one(first[turn], indices.subspan(at, length), mask.subspan(at, length));
    if (!drawn) return drawn;
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Sequences::sample(const Gather& gather, std::span<std::uint64_t> indices, std::span<bool> mask,
                         std::span<std::byte* const> out, unsigned threads) try {
  Status drawn = draw(indices, mask);
  if (!drawn) return drawn;
  const auto gone = std::make_unique<bool[]>(indices.size());
  auto lost = gather.read(indices, out, {gone.get(), indices.size()}, threads);
  if (!lost) return std::move(lost).error();
  const std::size_t length = options_.length;
  std::vector<std::byte*> to(out.size());
  for (std::size_t at = 0; at < indices.size(); at += length) {
    const auto is_lost = [&] {
      for (std::size_t row = at; row < at + length; ++row) {
        if (mask[row] && gone[row]) return true;
      }
      return false;
    };
    for (std::size_t i = 0; i < out.size(); ++i) to[i] = out[i] + at * gather.bytes(i);
    while (is_lost()) {
      drawn = draw_one(indices.subspan(at, length), mask.subspan(at, length));
      if (!drawn) return drawn;
      auto again = gather.read(indices.subspan(at, length), to, {gone.get() + at, length});
      if (!again) return std::move(again).error();
    }
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
