// Replay buffers for tests. All columns of a row contain its number, so that torn rows are detected.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "replay/rows/writer.h"
#include "support/arenas.h"
#include "support/row_reader.h"
#include "support/rows_check.h"

namespace shmtree::test {

using replay::Progress;
using replay::ReplayHeader;
using replay::RowInfo;
using replay::Shape;
using replay::ShapeOptions;
using replay::Store;
using replay::Writer;

// Columns: a number, a small array and a large one.
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
  std::array<replay::Column, 3> leaves() const { return {number.data(), small.data(), large.data()}; }
};
inline Result<std::uint64_t> add(Writer& writer, std::uint64_t number, const RowInfo& info = {}) {
  const Row row(number);
  return writer.add(row.leaves(), info, patience());
}
inline std::array<replay::Column, 3> columns_of(const std::vector<Row>& rows) {
  const auto column = [](const auto& first) { return replay::Column(&first, sizeof(Row)); };
  return {column(rows[0].number), column(rows[0].small), column(rows[0].large)};
}
inline Status end_with(Writer& writer, std::uint64_t final, bool truncated = false) {
  const Row row(final);
  return writer.end(row.leaves(), truncated, patience());
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
// Returns the number in the row with that index, or nullopt if the row was overwritten.
inline std::optional<std::uint64_t> row_at(const std::shared_ptr<Store>& store, std::uint64_t index) {
  Batch batch(1);
  bool gone = false;
  batch.indices[0] = index;
  Reader(store, 1).read(batch.indices, batch.out(), {&gone, 1}).value();
  if (gone || batch.is_torn()) return std::nullopt;
  return batch.number[0];
}

// A slot of a stream, which reads its state from the store.
struct Slot {
  std::uint64_t ticket = 0, slot = 0;

  std::uint64_t bit(const std::atomic<std::uint64_t>& word) const { return load_relaxed(word) >> slot & 1; }
  // Returns the next slot of the stream; ticket 0 if there is none.
  Slot next(const Store& store) const {
    if (slot + 1 < store.progress(ticket).rows) return {ticket, slot + 1};
    const std::uint64_t after = load_relaxed(store.info(ticket).next);
    if (after == 0 || store.progress(after).ticket != after || store.progress(after).rows == 0) return {};
    return load_relaxed(store.info(after).previous) == ticket ? Slot{after, 0} : Slot{};
  }
};
inline std::uint64_t number_in(const Store& store, const Slot& at) {
  std::uint64_t number = 0;
  std::memcpy(&number, store.leaf(store.shape().leaves[0], at.ticket, at.slot), sizeof number);
  return number;
}
// Returns true if every ready row has its successors in order: numbers ascend within an episode, including its last
// observation. No process may write meanwhile.
inline bool chains_are_right(const std::shared_ptr<Store>& store) {
  const auto window = store->window();
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    for (std::uint64_t slot = 0; slot < store->shape().rows_per_chunk; ++slot) {
      if (!store->has_row(ticket, slot)) continue;
      Slot at{ticket, slot};
      for (std::uint64_t ahead = 0; ahead < store->shape().ahead; ++ahead) {
        const Slot after = at.next(*store);
        if (at.bit(store->info(at.ticket).ends) != 0) {
          if (after.ticket == 0 || after.bit(store->info(after.ticket).finals) == 0) break;
          if (number_in(*store, after) != number_in(*store, at) + 1) return false;
          break;
        }
        if (after.ticket == 0 || number_in(*store, after) != number_in(*store, at) + 1) return false;
        at = after;
      }
    }
  }
  return true;
}

}  // namespace shmtree::test
