// An array as its owner has it, and the memory that the arrays of one message lie in: each range of it once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/column.h"
#include "format/layout.h"
#include "platform/flat_table.h"
#include "shmtree/kind.h"

namespace shmtree::format {

enum class Order : std::uint8_t { kC, kFortran, kStrided };

// Pointers must be valid during add_array(), `data` until copy_buffers().
struct ArraySource {
  const void* data = nullptr;             // the first element (index 0 in every dimension)
  const std::int64_t* shape = nullptr;    // `ndim` counts, none negative, their product times the item checked by you
  const std::int64_t* strides = nullptr;  // bytes, read with Order::kStrided only
  std::uint8_t ndim = 0;                  // at most kMaxDims
  Order order = Order::kC;
  DType dtype = DType::kOther;
  bool read_only = false;
  // Set for an array that does not own its memory: it may overlap another one of this message. Overlapping arrays are
  // stored once, as views of one buffer, unless that would take more bytes than storing each of them.
  bool may_share = false;
  bool whole_words = false;           // keeps 8-byte alignment in the buffer, even if shared; `data` is aligned
  std::uint32_t external = kNoIndex;  // from add_external(): the elements are there and are not copied
  std::int64_t external_offset = 0;   // of the first element, from the start of that external range
  std::uint64_t item_bytes = 0;       // for DType::kOther; otherwise known
  std::string_view description{};     // for DType::kOther: at most kMaxNameBytes
};

// A range of memory that arrays need.
struct SourceRange {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;          // from begin to the end of the last element
  std::uint64_t element_bytes = 0;  // of the elements alone
  std::uint64_t item_bytes = 0;
  std::int64_t first = 0;             // of the first element, from begin
  std::uint32_t geometry = kNoIndex;  // shape and strides of a range with gaps: gathered when nobody shares it
  std::uint8_t ndim = 0;
  bool may_share = false;
  bool unshared = false;  // its elements overlap each other, or it was not declared to share
  bool whole_words = false;
  // Set by BufferLayout.
  bool gathered = false;
  std::uint32_t leader = 0;        // of the cluster that shares one buffer: the range added first
  std::uint32_t buffer = 0;        // number of the buffer
  std::int64_t buffer_offset = 0;  // of `begin` in that buffer
  std::uint8_t padding = 0;        // bytes of the buffer before `low`, at the leader
  const std::byte* low = nullptr;  // of the whole cluster, at its leader
  const std::byte* high = nullptr;

  // A buffer of its own, until it is found to overlap another one.
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
  // The number of a range: the one that is there already, or a new one.
  std::uint32_t intern(const SourceRange& wanted) noexcept;
  // Notes shape and strides; the shape is then at geometry(number), the strides after its `ndim` counts.
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
  // Whether any two may overlap.
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
    numbers_.clear_to(kMaxIdlePlaces);
  }
  int failed() const noexcept { return int{geometries_.failed()} | int{ranges_.failed()} | int{has_no_memory_}; }

 private:
  static constexpr std::size_t kMaxIdlePlaces = 1024;
  bool same_geometry(const SourceRange& a, const SourceRange& b) const noexcept;
  static std::uint64_t hash(const SourceRange& range) noexcept;
  auto hash_of() const noexcept {
    return [this](std::uint32_t number) { return hash(ranges_[number - 1]); };
  }

  Column<SourceRange> ranges_;
  Column<std::int64_t> geometries_;
  // The numbers of the ranges, counted from 1, by begin and bytes.
  platform::FlatTable<std::uint32_t> numbers_;
  bool has_no_memory_ = false;  // for numbers_
  bool any_shares_ = false;
};

}  // namespace shmtree::format
