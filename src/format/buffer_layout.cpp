#include "format/buffer_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/layout.h"
#include "platform/copy.h"
#include "platform/dcheck.h"

namespace shmtree::format {

namespace {

// Copies `count` items of `item` bytes, `stride` bytes apart, to `out`, without gaps. Returns the end.
template <std::size_t item>
std::byte* pick(const std::byte* from, std::int64_t count, std::int64_t stride, std::byte* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(out + static_cast<std::size_t>(i) * item, from + i * stride, item);
  return out + static_cast<std::size_t>(count) * item;
}

std::byte* pick_row(const std::byte* from, std::int64_t count, std::int64_t stride, std::uint64_t item,
                    std::byte* out) noexcept {
  if (stride == static_cast<std::int64_t>(item)) {
    const std::size_t bytes = static_cast<std::size_t>(count) * item;
    std::memcpy(out, from, bytes);
    return out + bytes;
  }
  switch (item) {
    case 1: return pick<1>(from, count, stride, out);
    case 2: return pick<2>(from, count, stride, out);
    case 4: return pick<4>(from, count, stride, out);
    case 8: return pick<8>(from, count, stride, out);
    case 16: return pick<16>(from, count, stride, out);
    default:
      for (std::int64_t i = 0; i < count; ++i, out += item) std::memcpy(out, from + i * stride, item);
      return out;
  }
}

// Copies the elements in C order, whatever their order in memory: copies one row of the last dimension at a time, and
// counts the other indices like an odometer.
void gather(const SourceRange& range, const std::int64_t* shape, std::byte* out) noexcept {
  SHMTREE_DCHECK(range.ndim != 0 && range.ndim <= kMaxDims);
  const std::int64_t* strides = shape + range.ndim;
  const std::size_t last = range.ndim - std::size_t{1};
  std::int64_t at[kMaxDims] = {};
  const std::byte* row = range.begin + range.first;
  for (;;) {
    out = pick_row(row, shape[last], strides[last], range.item_bytes, out);
    std::size_t dim = last;
    for (;;) {
      if (dim == 0) return;
      --dim;
      row += strides[dim];
      if (++at[dim] < shape[dim]) break;
      row -= strides[dim] * shape[dim];
      at[dim] = 0;
    }
  }
}

}  // namespace

void BufferLayout::place(SourceTable& sources) noexcept {
  sources.may_share() ? place_shared(sources) : place_apart(sources);
}

void BufferLayout::add_buffer(SourceRange& range, std::size_t number) noexcept {
  range.buffer = static_cast<std::uint32_t>(buffers_.size());
  buffers_.push({.begin = range.low,
                 .bytes = range.gathered ? range.element_bytes
                                         : static_cast<std::uint64_t>(range.high - range.low) + range.padding,
                 .offset = 0,
                 .gathered = range.gathered ? static_cast<std::uint32_t>(number) : kNoIndex,
                 .padding = range.padding});
}

void BufferLayout::place_apart(SourceTable& sources) noexcept {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i].begin_alone(static_cast<std::uint32_t>(i));
    add_buffer(sources[i], i);
  }
}

// Sorts the ranges by address, so that one sweep finds the clusters of overlapping ranges. A cluster becomes one
// buffer, or one buffer per range. Buffers are numbered by their first range, so a frame does not depend on the
// sender's addresses.
void BufferLayout::place_shared(SourceTable& sources) noexcept {
  const std::size_t count = sources.size();
  order_.clear();
  if (order_.extend(count) == nullptr) return;
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sources[i].begin_alone(static_cast<std::uint32_t>(i));
    if (!sources[i].unshared) order_[used++] = static_cast<std::uint32_t>(i);
  }
  order_.truncate(used);
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return sources[a].begin != sources[b].begin ? sources[a].begin < sources[b].begin : a < b;
  });
  for_each_cluster(sources, 0, used, [&](std::size_t begin, std::size_t end) { place_cluster(sources, begin, end); });
  for (std::size_t i = 0; i < count; ++i) {
    SourceRange& range = sources[i];
    if (range.leader == i) add_buffer(range, i);
    const SourceRange& leader = sources[range.leader];
    range.buffer = leader.buffer;
    range.buffer_offset = range.begin - leader.low + leader.padding;
  }
}

// Calls use(begin, end) for each run of two or more overlapping ranges in order_[at, end).
template <class Use>
void BufferLayout::for_each_cluster(const SourceTable& sources, std::size_t at, std::size_t end, Use use) noexcept {
  while (at < end) {
    const std::size_t begin = at;
    const std::byte* high = sources[order_[begin]].high;
    for (++at; at < end && sources[order_[at]].begin < high; ++at) high = std::max(high, sources[order_[at]].high);
    if (at - begin > 1) use(begin, at);
  }
}

// Ranges with gaps join the cluster only if the whole cluster is not larger than the elements alone. For example, two
// columns of a wide matrix overlap as ranges, but must not cause the whole matrix to be sent.
void BufferLayout::place_cluster(SourceTable& sources, std::size_t begin, std::size_t end) noexcept {
  std::uint64_t apart = 0;
  const std::byte* high = sources[order_[begin]].high;
  for (std::size_t i = begin; i < end; ++i) {
    apart += sources[order_[i]].element_bytes;
    high = std::max(high, sources[order_[i]].high);
  }
  const auto together = static_cast<std::uint64_t>(high - sources[order_[begin]].begin);
  if (together <= apart) return merge(sources, begin, end);
  // Ranges without gaps still share a buffer where they overlap.
  const auto plain_end = std::stable_partition(order_.begin() + begin, order_.begin() + end,
                                               [&](std::uint32_t i) { return sources[i].geometry == kNoIndex; });
  for_each_cluster(sources, begin, static_cast<std::size_t>(plain_end - order_.begin()),
                   [&](std::size_t first, std::size_t last) { merge(sources, first, last); });
}

void BufferLayout::merge(SourceTable& sources, std::size_t begin, std::size_t end) noexcept {
  SHMTREE_DCHECK(begin < end && end <= order_.size());
  std::uint32_t leader = order_[begin];
  const std::byte* low = sources[order_[begin]].begin;
  const std::byte* high = low;
  const std::byte* word = low;
  for (std::size_t i = begin; i < end; ++i) {
    leader = std::min(leader, order_[i]);
    high = std::max(high, sources[order_[i]].high);
    if (sources[order_[i]].whole_words) word = sources[order_[i]].begin;
  }
  for (std::size_t i = begin; i < end; ++i) {
    sources[order_[i]].leader = leader;
    sources[order_[i]].gathered = false;
  }
  sources[leader].low = low;
  sources[leader].high = high;
  const std::uintptr_t before = std::bit_cast<std::uintptr_t>(low) - std::bit_cast<std::uintptr_t>(word);
  sources[leader].padding = static_cast<std::uint8_t>(before % kWordBytes);
}

void BufferLayout::copy(const SourceTable& sources, std::byte* out, std::uint64_t end) const noexcept {
  for (const Buffer& buffer : buffers_) {
    SHMTREE_DCHECK(end <= buffer.offset && buffer.offset % kBufferAlignment == 0);
    // Do not leak earlier contents of this memory to receivers.
    std::memset(out + end, 0, buffer.offset - end);
    if (buffer.gathered == kNoIndex) {
      std::memset(out + buffer.offset, 0, buffer.padding);
      platform::copy_bytes(out + buffer.offset + buffer.padding, buffer.begin, buffer.bytes - buffer.padding);
    } else {
      const SourceRange& range = sources[buffer.gathered];
      gather(range, sources.geometry(range.geometry), out + buffer.offset);
    }
    end = buffer.offset + buffer.bytes;
  }
}

}  // namespace shmtree::format
