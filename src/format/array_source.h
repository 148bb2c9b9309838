// Describes an array in the sender's memory, and collects the memory ranges of all arrays of one message. Each range is
// listed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/column.h"
#include "format/layout.h"
#include "platform/flat_table.h"
#include "shmtree/base/kind.h"

namespace shmtree::format {

enum class Order : std::uint8_t { kC, kFortran, kStrided };

// Pointers must be valid during add_array(), `data` until copy_buffers().
struct ArraySource {
  const void* data = nullptr;             // first element (index 0 in every dimension)
  const std::int64_t* shape = nullptr;    // `ndim` counts >= 0. The caller checks their product with the item size.
  const std::int64_t* strides = nullptr;  // In bytes; read only with Order::kStrided.
  std::uint8_t ndim = 0;                  // Number of dimensions, at most kMaxDims.
  Order order = Order::kC;
  DType dtype = DType::kOther;
  bool read_only = false;
  // True for an array that does not own its memory and may overlap another array of this message. Overlapping arrays
  // are stored once, as views of one buffer, unless separate copies take fewer bytes.
  bool may_share = false;
  bool whole_words = false;           // Keeps 8-byte alignment in the buffer, even if shared; `data` is aligned.
  std::uint32_t external = kNoIndex;  // Number from add_external(): the elements stay in that range and are not copied.
  std::int64_t external_offset = 0;   // First element, from the start of the external range.
  std::uint64_t item_bytes = 0;       // Read only with DType::kOther.
  std::string_view description{};     // Read only with DType::kOther; at most kMaxNameBytes.
};

// A range of memory that contains the elements of one or more arrays.
struct SourceRange {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;          // from begin to the end of the last element
  std::uint64_t element_bytes = 0;  // bytes of the elements, without gaps
  std::uint64_t item_bytes = 0;
  std::int64_t first = 0;             // offset of the first element from begin
  std::uint32_t geometry = kNoIndex;  // shape and strides of a range with gaps, which is gathered unless shared
  std::uint8_t ndim = 0;
  bool may_share = false;
  bool unshared = false;  // never shares a buffer: elements overlap each other, or gaps without may_share
  bool whole_words = false;
  // Set by BufferLayout.
  bool gathered = false;
  std::uint32_t leader = 0;  // First added range of the cluster (its leader). The ranges of a cluster share one buffer.
  std::uint32_t buffer = 0;  // Number of the buffer.
  std::int64_t buffer_offset = 0;  // Offset of `begin` in the buffer.
  std::uint8_t padding = 0;        // Bytes of the buffer before `low`; set at the leader.
  const std::byte* low = nullptr;  // Bounds of the whole cluster; set at the leader.
  const std::byte* high = nullptr;

  // Assigns a separate buffer to the range. BufferLayout changes this if another range overlaps it.
  void begin_alone(std::uint32_t number) noexcept {
    gathered = geometry != kNoIndex;
    leader = number;
    buffer_offset = 0;
    padding = 0;
    low = begin;
    high = begin + bytes;
  }
};

class SourceTable {
 public:
  // Adds the range if it is new. Returns its number.
  std::uint32_t intern(const SourceRange& wanted) noexcept;
  // Stores shape and strides, and returns their number. geometry(number) points to the `ndim` counts of the shape,
  // which the strides follow.
  std::uint32_t add_geometry(const ArraySource& source) noexcept {
    const auto number = static_cast<std::uint32_t>(geometries_.size());
    geometries_.append(source.shape, source.ndim);
    geometries_.append(source.strides, source.ndim);
    return number;
  }
  const std::int64_t* geometry(std::uint32_t number) const noexcept { return &geometries_[number]; }

  std::size_t size() const noexcept { return ranges_.size(); }
  SourceRange& operator[](std::size_t i) noexcept { return ranges_[i]; }
  const SourceRange& operator[](std::size_t i) const noexcept { return ranges_[i]; }
  // Returns true if two ranges may overlap.
  bool may_share() const noexcept { return any_shares_ && ranges_.size() > 1; }

  struct Mark {
    std::size_t ranges, geometries;
  };
  Mark mark() const noexcept { return {ranges_.size(), geometries_.size()}; }
  void rewind(const Mark& mark) noexcept;
  void clear() noexcept {
    geometries_.clear();
    any_shares_ = false;
    has_no_memory_ = false;
    ranges_.clear();
    numbers_.clear_to(kMaxIdleSlots);
  }
  int failed() const noexcept { return int{geometries_.failed()} | int{ranges_.failed()} | int{has_no_memory_}; }

 private:
  static constexpr std::size_t kMaxIdleSlots = 1024;
  bool same_geometry(const SourceRange& a, const SourceRange& b) const noexcept;
  static std::uint64_t hash(const SourceRange& range) noexcept;
  auto hash_of() const noexcept {
    return [this](std::uint32_t number) { return hash(ranges_[number - 1]); };
  }

  Column<SourceRange> ranges_;
  Column<std::int64_t> geometries_;
  // Range numbers plus 1, hashed by begin and bytes.
  platform::FlatTable<std::uint32_t> numbers_;
  bool has_no_memory_ = false;  // numbers_ could not grow
  bool any_shares_ = false;
};

}  // namespace shmtree::format
