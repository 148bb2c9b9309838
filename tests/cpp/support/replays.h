// Replay buffers for tests: rows whose leaves all say the row's number, so that a torn one shows.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "replay/reader.h"
#include "replay/writer.h"
#include "support/arenas.h"

namespace shmtree::test {

using replay::Progress;
using replay::Reader;
using replay::ReplayHeader;
using replay::Shape;
using replay::ShapeOptions;
using replay::Store;
using replay::Writer;

// A number, a small array and a large one.
constexpr std::array<std::uint64_t, 3> kLeafBytes{8, 40, 4096};

inline std::shared_ptr<Store> new_store(const ShapeOptions& options,
                                        const std::shared_ptr<Arena>& arena = new_arena()) {
  const std::string note = "rows of tests";
  return Store::create(arena, replay::shape_of(kLeafBytes, options).value(), std::as_bytes(std::span(note)), patience())
      .value();
}
inline ReplayHeader& header_of(Store& store) {
  return *reinterpret_cast<ReplayHeader*>(store.arena()->blocks().address(store.block().id));
}

struct Row {
  std::array<std::uint64_t, 1> number{};
  std::array<std::uint64_t, 5> small{};
  std::array<std::uint64_t, 512> large{};

  explicit Row(std::uint64_t value = 0) {
    number.fill(value);
    small.fill(value);
    large.fill(value);
  }
  std::array<const void*, 3> leaves() const { return {number.data(), small.data(), large.data()}; }
};
inline Result<std::uint64_t> add(Writer& writer, std::uint64_t number, const WaitContext& wait = patience()) {
  const Row row(number);
  return writer.add(row.leaves(), wait);
}

struct Batch {
  std::vector<std::uint64_t> indices, number, small, large;

  explicit Batch(std::size_t rows) : indices(rows), number(rows), small(5 * rows), large(512 * rows) {}
  std::array<std::byte*, 3> out() {
    return {reinterpret_cast<std::byte*>(number.data()), reinterpret_cast<std::byte*>(small.data()),
            reinterpret_cast<std::byte*>(large.data())};
  }
  bool is_torn(std::size_t at) const {
    for (std::size_t i = 0; i < 5; ++i) {
      if (small[5 * at + i] != number[at]) return true;
    }
    for (std::size_t i = 0; i < 512; ++i) {
      if (large[512 * at + i] != number[at]) return true;
    }
    return false;
  }
  bool is_torn() const {
    for (std::size_t at = 0; at < indices.size(); ++at) {
      if (is_torn(at)) return true;
    }
    return false;
  }
};
inline Status sample(Reader& reader, Batch& batch) {
  return reader.sample(batch.indices, batch.out());
}
// The number in the row of that index; none when it is gone.
inline std::optional<std::uint64_t> row_at(const std::shared_ptr<Store>& store, std::uint64_t index) {
  Batch batch(1);
  bool gone = false;
  batch.indices[0] = index;
  Reader(store, 1).read(batch.indices, batch.out(), {&gone, 1}).value();
  if (gone || batch.is_torn()) return std::nullopt;
  return batch.number[0];
}

}  // namespace shmtree::test
