// Systems with pages that are larger than the smallest blocks.
#include <vector>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kPage = 65536;

std::shared_ptr<Arena> arena_with_pages(std::uint64_t page_bytes) {
  return Arena::create({.max_bytes = 16 * kMiB, .page_bytes = page_bytes}).value();
}

}  // namespace

TEST_CASE("Blocks share no page and counts are whole pages") {
  auto arena = arena_with_pages(kPage);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5000}, kPage, kPage + 1}) {
    const std::uint64_t before = used_bytes(*arena);
    const OwnedBlock one = new_block(*arena, bytes), other = new_block(*arena, bytes);
    CHECK(one.ref().id.size_class() >= 16);
    CHECK(arena->blocks().capacity_of(one.ref().id) % kPage == 0);
    CHECK(arena->blocks().capacity_of(one.ref().id) >= bytes);
    CHECK(used_bytes(*arena) == before + 2 * arena->blocks().capacity_of(one.ref().id));
  }
  CHECK(check_arena(*arena) == "");
}

// guarantee: page-sizes
TEST_CASE("With large pages the budget holds and trim frees all of it") {
  auto arena = arena_with_pages(kPage);
  const std::uint64_t before = file_pages_bytes(*arena);
  std::vector<OwnedBlock> blocks;
  for (;;) {
    auto block = arena->allocate(1, BlockKind::kMessage, no_wait());
    if (!block) break;
    blocks.push_back(std::move(*block));
  }
  CHECK(blocks.size() == 16 * kMiB / kPage);
  blocks.clear();
  CHECK(arena->allocator().trim() == 16 * kMiB);
  CHECK(file_pages_bytes(*arena) <= before + kMiB);  // including the tables
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("Part of a free block is returned in whole pages") {
  auto arena = arena_with_pages(kPage);
  new_block(*arena, 10 * kMiB).abandon();
  const OwnedBlock other = new_block(*arena, 6 * kMiB + 1);
  CHECK(arena->inspector().stats().committed_bytes == 16 * kMiB);
  CHECK(check_arena(*arena) == "");
}

// guarantee: page-sizes
TEST_CASE("An unsupported page size is refused and named") {
  for (const std::uint64_t page_bytes : {2048u, 5000u, 131072u}) {
    auto refused = Arena::create({.max_bytes = 16 * kMiB, .page_bytes = page_bytes});
    REQUIRE(!refused);
    CHECK(refused.code() == Code::kIncompatible);
    CHECK(refused.error().message.find(std::to_string(page_bytes)) != std::string::npos);
  }
}
