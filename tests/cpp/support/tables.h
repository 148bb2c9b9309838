// Tables of replay buffers, for tests.
#pragma once

#include <cmath>
#include <vector>

#include "replay/sampling/tables.h"
#include "support/replays.h"

namespace shmtree::test {

using replay::SamplerKind;
using replay::Tables;
using replay::TableSpec;

inline std::shared_ptr<Tables> new_tables(const ShapeOptions& options, const std::vector<TableSpec>& specs,
                                          const std::shared_ptr<Arena>& arena = new_arena(),
                                          std::span<const std::uint64_t> leaf_bytes = kLeafBytes,
                                          const replay::RateLimit* limit = nullptr, bool has_members = false) {
  const Shape shape = replay::shape_of(leaf_bytes, options).value();
  const std::uint64_t bytes = Tables::bytes_for(shape, specs, limit, has_members).value();
  return Tables::create(Store::create(arena, shape, {}, patience(), bytes).value(), specs, limit, has_members).value();
}
inline std::shared_ptr<Tables> opened_tables(const std::shared_ptr<Tables>& tables) {
  const auto& store = tables->store();
  return Tables::open(Store::open(store->arena(), store->block(), kLeafBytes, patience()).value()).value();
}

// Adds a row with that priority; by default, with the largest priority so far.
inline std::uint64_t add_row(Writer& writer, std::uint64_t number, float priority = std::nanf("")) {
  return add(writer, number, {.priority = priority}).value();
}

// Updates priorities. Returns, for each row, whether it existed; or the error.
inline Result<std::vector<bool>> update(Tables& tables, const std::vector<std::uint64_t>& indices,
                                        const std::vector<double>& priorities, std::size_t table = Tables::kAll) {
  const auto applied = std::make_unique<bool[]>(indices.size());
  Status updated = tables.update(table, indices, priorities, {applied.get(), indices.size()});
  if (!updated) return std::move(updated).error();
  return std::vector<bool>(applied.get(), applied.get() + indices.size());
}
// Returns the weight of a row in a table; 0 if it has none.
inline float weight_at(const Tables& tables, std::uint64_t index, std::size_t table = 0) {
  const Shape& shape = tables.store()->shape();
  const std::uint64_t rows = shape.rows_per_chunk, ticket = index / rows;
  const std::uint64_t word = load_relaxed(tables[table].leaves().word(ticket % shape.chunks * rows + index % rows));
  return replay::ticket_of(word) == static_cast<std::uint32_t>(ticket) ? replay::weight_of(word) : 0;
}

}  // namespace shmtree::test
