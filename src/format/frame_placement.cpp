// FrameBuilder::finish(): which ranges share a buffer, and where in the frame each buffer goes.
#include <algorithm>

#include "format/frame_builder.h"
#include "schema/shmtree.columns.h"

namespace shmtree::format {

Status FrameBuilder::finish() noexcept {
  total_bytes_ = buffer_bytes_ = 0;
  metadata_bytes_ = 0;
  layout_.clear();
  views_.clear();
  descriptors_.clear();
  if (!any_failed()) {
    if (any_share_ && sources_.size() > 1) {
      place_shared();
    } else {
      place_alone();
    }
    place_views();
  }
  if (any_failed() || layout_.failed() || views_.failed() || descriptors_.failed() || order_.failed()) {
    return Error{.code = Code::kOutOfSharedMemory, .message = "There is no memory left to describe the message."};
  }
  return measure();
}

void FrameBuilder::place_alone() noexcept {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.gathered = source.side != kNoIndex;
    source.buffer = static_cast<std::uint32_t>(i);
    source.buffer_at = 0;
    layout_.push({.begin = source.begin,
                  .bytes = source.gathered ? source.element_bytes : source.bytes,
                  .offset = 0,
                  .gathered = source.gathered ? static_cast<std::uint32_t>(i) : kNoIndex});
  }
}

// Sorted by address, ranges that overlap stand together: a sweep finds these clusters, and each is either one buffer or
// one buffer per source. Buffers are numbered by the first source in each, so that a frame does not depend on where the
// sender's memory happens to lie.
void FrameBuilder::place_shared() noexcept {
  const std::size_t count = sources_.size();
  order_.clear();
  if (order_.extend(count) == nullptr) return;
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Source& source = sources_[i];
    source.leader = static_cast<std::uint32_t>(i);
    source.gathered = source.side != kNoIndex;
    source.low = source.begin;
    source.high = source.begin + source.bytes;
    if (!source.alone) order_[used++] = static_cast<std::uint32_t>(i);
  }
  order_.truncate(used);
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return sources_[a].begin != sources_[b].begin ? sources_[a].begin < sources_[b].begin : a < b;
  });
  for (std::size_t begin = 0, end = 0; begin < used; begin = end) {
    const std::byte* high = sources_[order_[begin]].high;
    for (end = begin + 1; end < used && sources_[order_[end]].begin < high; ++end) {
      high = std::max(high, sources_[order_[end]].high);
    }
    if (end - begin > 1) place_cluster(begin, end);
  }
  for (std::size_t i = 0; i < count; ++i) {
    Source& source = sources_[i];
    if (source.leader == i) {
      source.buffer = static_cast<std::uint32_t>(layout_.size());
      layout_.push(
          {.begin = source.low,
           .bytes = source.gathered ? source.element_bytes : static_cast<std::uint64_t>(source.high - source.low),
           .offset = 0,
           .gathered = source.gathered ? static_cast<std::uint32_t>(i) : kNoIndex});
    }
    const Source& leader = sources_[source.leader];
    source.buffer = leader.buffer;
    source.buffer_at = source.begin - leader.low;
  }
}

// Ranges with gaps join the cluster only when the whole of it is not larger than the elements one by one: two columns
// of a wide matrix overlap in range, but the matrix must not be sent for them.
void FrameBuilder::place_cluster(std::size_t begin, std::size_t end) noexcept {
  std::uint64_t apart = 0;
  const std::byte* high = sources_[order_[begin]].high;
  for (std::size_t i = begin; i < end; ++i) {
    apart += sources_[order_[i]].element_bytes;
    high = std::max(high, sources_[order_[i]].high);
  }
  const auto together = static_cast<std::uint64_t>(high - sources_[order_[begin]].begin);
  if (together <= apart) return merge(begin, end);
  // Those without gaps still share with each other, where they overlap.
  const auto plain_end = std::stable_partition(order_.begin() + begin, order_.begin() + end,
                                               [this](std::uint32_t i) { return sources_[i].side == kNoIndex; });
  const auto plain = static_cast<std::size_t>(plain_end - order_.begin());
  for (std::size_t first = begin, last = begin; first < plain; first = last) {
    const std::byte* reach = sources_[order_[first]].high;
    for (last = first + 1; last < plain && sources_[order_[last]].begin < reach; ++last) {
      reach = std::max(reach, sources_[order_[last]].high);
    }
    if (last - first > 1) merge(first, last);
  }
}

void FrameBuilder::merge(std::size_t begin, std::size_t end) noexcept {
  std::uint32_t leader = order_[begin];
  const std::byte* low = sources_[order_[begin]].begin;
  const std::byte* high = low;
  for (std::size_t i = begin; i < end; ++i) {
    leader = std::min(leader, order_[i]);
    high = std::max(high, sources_[order_[i]].high);
  }
  for (std::size_t i = begin; i < end; ++i) {
    sources_[order_[i]].leader = leader;
    sources_[order_[i]].gathered = false;
  }
  sources_[leader].low = low;
  sources_[leader].high = high;
}

// The final descriptors: flags, buffer, and in `views` the offsets and strides that are needed after placement.
void FrameBuilder::place_views() noexcept {
  for (const ArrayRecord& record : arrays_) {
    std::uint8_t flags = record.flags;
    std::uint32_t buffer = record.source;
    std::int64_t offset = record.offset;
    bool strided = record.side != kNoIndex;
    if ((flags & kNoBuffer) != 0) {
      buffer = 0;
    } else if ((flags & kExternal) == 0) {
      const Source& source = sources_[record.source];
      buffer = source.buffer;
      offset = source.gathered ? 0 : offset + source.buffer_at;
      strided = strided && !source.gathered;
    }
    if (offset != 0) {
      flags |= kOffset;
      views_.push(offset);
    }
    if (strided) {
      flags |= kStrided;
      views_.append(&sides_[record.side] + record.ndim, record.ndim);
    }
    using At = schema::Array;
    descriptors_.push(std::uint64_t{record.dtype} << At::dtype | std::uint64_t{flags} << At::flags |
                      std::uint64_t{record.ndim} << At::ndim | std::uint64_t{buffer} << At::buffer);
  }
}

}  // namespace shmtree::format
