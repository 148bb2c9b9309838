// The maximum cost of reading a small frame, of any origin.
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>

#include "support/catch2.h"
#include "support/frames.h"
#include "support/malloc_delete.h"
#include "support/waits.h"
#include "value/codec.h"

using namespace shmtree;
using format::FrameBuilder;

namespace {
thread_local std::size_t allocated_bytes = 0;
thread_local std::size_t allocations = 0;
}  // namespace

// Counts all memory that C++ allocates in this program, freed or not.
SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes) {
  allocated_bytes += bytes;
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocated_bytes += bytes;
  ++allocations;
  return std::malloc(bytes);
}
SHMTREE_REPLACES_ALLOCATION void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  allocated_bytes += bytes;
  ++allocations;
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
// The sanitizers have their own operator for arrays, which does not call the one above.
SHMTREE_REPLACES_ALLOCATION void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
SHMTREE_REPLACES_ALLOCATION void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}

namespace {

// Returns a frame with as many nodes as fit into a KiB.
test::Bytes full_of(const std::function<void(FrameBuilder&)>& add) {
  FrameBuilder builder;
  test::Bytes frame;
  for (std::uint64_t count = 1;; ++count) {
    builder.clear();
    builder.add_kind(Kind::kList);
    builder.add_length(count);
    for (std::uint64_t i = 0; i < count; ++i) add(builder);
    builder.finish().value();
    if (builder.total_bytes() > 1024) return frame;
    frame = test::bytes_of(builder);
  }
}

}  // namespace

TEST_CASE("a 1 KiB frame costs at most 1 MiB and 10 ms", "[timing]") {
  static const std::uint8_t bytes[64] = {};
  const auto which = GENERATE(0, 1, 2, 3, 4);
  const std::function<void(FrameBuilder&)> kinds[] = {
      [](FrameBuilder& builder) {
        builder.add_kind(Kind::kTuple);
        builder.add_length(0);
      },
      [](FrameBuilder& builder) { builder.add_none_node(); },
      [](FrameBuilder& builder) {
        const std::int64_t shape[] = {1, 1, 1};
        test::add_array_node(builder, {.data = bytes, .shape = shape, .ndim = 3, .dtype = DType::kUInt8});
      },
      [](FrameBuilder& builder) {
        builder.add_kind(Kind::kIntList);
        builder.add_length(3);
        for (int i = 0; i < 3; ++i) builder.add_int(i);
      },
      [](FrameBuilder& builder) {
        builder.add_kind(Kind::kGlobal);
        builder.add_name(std::to_string(builder.kinds()));
      }};
  const test::Bytes frame = full_of(kinds[which]);
  bool ok = false;
  std::size_t allocated = 0;
  const std::int64_t took_ms = test::shortest_ms(10, [&] {
    allocated_bytes = 0;
    ok = value::decode(frame, nullptr).ok();
    allocated = allocated_bytes;
  });
  CHECK(ok);
  CHECK(allocated > 1024);
  CHECK(allocated <= std::size_t{1} << 20);
  CHECK(took_ms < 10);
  INFO("allocated " << allocated);
}

TEST_CASE("decoding a small message takes at most one allocation", "[allocations]") {
  static const std::uint8_t bytes[1024] = {};
  const bool is_array = GENERATE(false, true), has_owner = GENERATE(false, true);
  FrameBuilder builder;
  if (is_array) {
    const std::int64_t shape[] = {sizeof bytes};
    test::add_array_node(builder, {.data = bytes, .shape = shape, .ndim = 1, .dtype = DType::kUInt8});
  } else {
    test::add_small_dict(builder);
  }
  const test::Bytes frame = test::bytes_of(builder);
  const auto owner = has_owner ? std::make_shared<int>() : nullptr;
  value::decode(frame, owner).value();  // fills the caches that a thread keeps for all messages
  allocations = 0;
  const Item item = value::decode(frame, owner).value();
  const std::size_t made = allocations;
  CHECK(made <= 1);  // none if the thread has memory ready
  if (!is_array) return;
  const auto* begin = reinterpret_cast<const std::byte*>(frame.data());
  const bool is_viewed = item.view().data >= begin && item.view().data < begin + frame.size();
  CHECK((is_viewed == has_owner && item.view().elements == sizeof bytes));
}

TEST_CASE("a thread caches memory for only a few Items", "[allocations]") {
  static const std::uint8_t bytes[2048] = {};
  const std::int64_t shape[] = {sizeof bytes};
  FrameBuilder builder;
  test::add_array_node(builder, {.data = bytes, .shape = shape, .ndim = 1, .dtype = DType::kUInt8});
  const test::Bytes frame = test::bytes_of(builder);
  const auto decode_many = [&] {
    std::vector<Item> items;
    for (int i = 0; i < 20; ++i) items.push_back(value::decode(frame, nullptr).value());
  };
  decode_many();
  allocated_bytes = 0;
  decode_many();
  const std::size_t allocated = allocated_bytes;
  CHECK(allocated >= 16 * sizeof bytes);
}
