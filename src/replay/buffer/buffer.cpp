#include "replay/buffer/buffer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>

#include "platform/errors.h"
#include "platform/machine.h"
#include "replay/rate_limiter/rate_limiter.h"

namespace shmtree::replay {

namespace {

constexpr std::size_t kMaxIdleSamplers = 4;

}  // namespace

SamplerPool::SamplerPool(std::size_t tables) : idle_(tables) {
  for (auto& idle : idle_) idle.reserve(kMaxIdleSamplers);
}

std::unique_ptr<Sampler> SamplerPool::take(std::size_t table) noexcept {
  const std::lock_guard guard(mutex_);
  auto& idle = idle_[table];
  if (idle.empty()) return nullptr;
  auto sampler = std::move(idle.back());
  idle.pop_back();
  return sampler;
}

void SamplerPool::give_back(std::size_t table, std::unique_ptr<Sampler> sampler) noexcept {
  if (sampler == nullptr) return;
  const std::lock_guard guard(mutex_);
  auto& idle = idle_[table];
  if (idle.size() < kMaxIdleSamplers) idle.push_back(std::move(sampler));  // otherwise frees it after unlocking
}

Result<BorrowedSampler> BorrowedSampler::take(Buffer& buffer, std::size_t table) {
  auto sampler = buffer.samplers().take(table);
  if (sampler == nullptr) {
    auto created = Sampler::make(buffer.tables(), table, buffer.new_seed());
    if (!created) return std::move(created).error();
    sampler = std::move(*created);
  }
  return BorrowedSampler(buffer, table, std::move(sampler));
}

Buffer::Buffer(std::shared_ptr<Tables> tables, Spec spec, Gather gather)
    : tables_(std::move(tables)),
      spec_(std::move(spec)),
      endings_(spec_),
      gather_(std::move(gather)),
      samplers_(tables_->size()),
      sampling_(tables_->samplers()) {
  unsigned char random[16];
  platform::random_bytes(random, sizeof random);
  std::uint64_t seed = 0;
  std::memcpy(&seed, random, sizeof seed);
  set_seed(seed);
  for (const Leaf& leaf : store()->shape().leaves) row_bytes_ += leaf.bytes;
}

Result<std::shared_ptr<Buffer>> Buffer::make(std::shared_ptr<Tables> tables, Spec spec) {
  std::uint32_t max_frames = 1;
  auto gather = Gather::create(tables->store(), spec.outputs());
  if (!gather) return std::move(gather).error();
  for (const auto& [leaf, frames] : spec.stack) max_frames = std::max(max_frames, frames);
  tables->store()->set_frames(max_frames);
  return std::shared_ptr<Buffer>(new Buffer(std::move(tables), std::move(spec), std::move(*gather)));
}

Result<std::uint64_t> Buffer::total_bytes(const Spec& spec, const BufferSize& sizes) {
  const auto overhead = overhead_bytes(spec, sizes);
  if (!overhead) return overhead.error();
  const auto shape = spec.shape(sizes.capacity, sizes.chunk, sizes.streams);
  if (!shape) return shape.error();
  return *overhead + Store::extents_bytes(*shape);
}

Result<std::uint64_t> Buffer::overhead_bytes(const Spec& spec, const BufferSize& sizes) {
  const auto shape = spec.shape(sizes.capacity, sizes.chunk, sizes.streams);
  if (!shape) return shape.error();
  const auto tables = Tables::bytes_for(*shape, spec.tables(), spec.limit_or_null(), spec.raises_on_death);
  if (!tables) return tables.error();
  return Store::control_bytes(*shape, pack(spec).size(), *tables);
}

Result<std::uint64_t> Buffer::capacity_within(const Spec& spec, std::uint64_t max_bytes, const BufferSize& sizes) {
  const auto takes = [&](std::uint64_t rows) {
    return total_bytes(spec, {rows, std::min(sizes.chunk, std::bit_floor(rows)), sizes.streams});
  };
  const std::uint64_t least = std::max(spec.ahead() + 1, spec.limit ? spec.limit->min_size : 1);  // smallest capacity
  auto smallest = takes(least);
  if (!smallest) return smallest;
  if (*smallest > max_bytes) {
    return Error{Code::kInvalid, "max_bytes is " + std::to_string(max_bytes) + "; the smallest buffer has " +
                                     (least == 1 ? "one such row" : std::to_string(least) + " such rows") +
                                     " and takes " + std::to_string(*smallest) + " bytes"};
  }
  const auto fits = [&](std::uint64_t rows) {
    const auto bytes = takes(rows);
    return bytes && *bytes <= max_bytes;
  };
  std::uint64_t low = least, high = 2 * least;
  for (; fits(high); high *= 2) low = high;  // ends, since invalid capacities do not fit either
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

Result<std::shared_ptr<Buffer>> Buffer::create(std::shared_ptr<Arena> arena, Spec spec, const BufferSize& sizes,
                                               const WaitContext& wait) {
  const auto shape = spec.shape(sizes.capacity, sizes.chunk, sizes.streams);
  if (!shape) return shape.error();
  const std::vector<TableSpec> specs = spec.tables();
  const auto table_bytes = Tables::bytes_for(*shape, specs, spec.limit_or_null(), spec.raises_on_death);
  if (!table_bytes) return table_bytes.error();
  const std::string note = pack(spec);
  auto store = Store::create(std::move(arena), *shape, std::as_bytes(std::span(note)), wait, *table_bytes);
  if (!store) return std::move(store).error();
  auto tables = Tables::create(std::move(*store), specs, spec.limit_or_null(), spec.raises_on_death);
  if (!tables) return std::move(tables).error();
  return make(std::move(*tables), std::move(spec));
}

Status Buffer::check_options(const Spec& spec, const BufferSize& sizes) const {
  const Shape& is = store()->shape();
  const auto asked = spec.shape(sizes.capacity, sizes.chunk, sizes.streams);
  if (!asked) return asked.error();
  OptionDifferences others;
  others.compare("capacity", is.capacity, asked->capacity);
  if (sizes.chunk != 0) others.compare("chunk", is.rows_per_chunk, asked->rows_per_chunk);
  // For members that an error cannot show in a few words: copies the given values into a copy of the specification, and
  // compares the notes of both.
  const auto compare = [&](const char* option, auto... parts) {
    Spec changed = spec_;
    ((changed.*parts = spec.*parts), ...);
    if (pack(changed) != pack(spec_)) others.compare(option, std::string("of the existing buffer"), "those given");
    return pack(changed) == pack(spec_);
  };
  others.compare("n_step", spec_.n_step, spec.n_step);
  others.compare("gamma", std::to_string(spec_.gamma), std::to_string(spec.gamma));
  if (compare("columns", &Spec::row, &Spec::leaves)) {
    compare("next", &Spec::next);
    compare("stack", &Spec::stack);
    compare("reward", &Spec::reward);
    compare("done", &Spec::done, &Spec::terminated, &Spec::truncated, &Spec::ends_unknown);
  }
  others.compare_flags("stack_repeats_first", spec_.repeats_first, spec.repeats_first);
  compare("samplers", &Spec::samplers);
  compare("limit", &Spec::limit);
  const auto on_death = [](bool raises) { return std::string(raises ? "raise" : "wait"); };
  others.compare("on_peer_death", on_death(spec_.raises_on_death), on_death(spec.raises_on_death));
  return others.of("a replay buffer");
}

Result<std::shared_ptr<Buffer>> Buffer::open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                             const WaitContext& wait) {
  const auto note = Store::note_at(arena, block, wait);
  if (!note) return note.error();
  auto unpacked = unpack(std::as_bytes(std::span(note->bytes)));
  if (!unpacked) return std::move(unpacked).error();
  Spec& spec = *unpacked;
  auto store = Store::open(std::move(arena), block, spec.leaf_bytes(), wait);
  if (!store) return std::move(store).error();
  auto tables = Tables::open(std::move(*store));
  if (!tables) return std::move(tables).error();
  const Shape& shape = (*tables)->store()->shape();
  if ((*tables)->size() != spec.samplers.size() || shape.ahead != spec.ahead() || shape.finals != spec.has_finals() ||
      (*tables)->has_members() != spec.raises_on_death) {
    return Error{.code = Code::kIncompatible,
                 .message = "the shared state of this replay buffer contradicts its specification"};
  }
  return make(std::move(*tables), std::move(spec));
}

std::uint64_t Buffer::new_seed() noexcept {
  const std::uint64_t number = seeds_given_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t identity = store()->arena()->current_identity();  // tells a forked child from its parent
  return Random(Random(seed() ^ number).next() ^ identity).next();
}

std::int64_t Buffer::newest() const noexcept {
  const std::uint64_t last = store()->window().tail - 1, rows = store()->shape().rows_per_chunk;
  const Progress now = store()->progress(last);
  return static_cast<std::int64_t>(last * rows + (now.ticket == last ? now.rows : rows)) - 1;
}

std::uint64_t Buffer::added() const noexcept {
  const Window window = store()->window();
  const std::uint64_t rows = store()->shape().rows_per_chunk;
  std::uint64_t slots = (window.tail - 1) * rows;
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    const Progress now = store()->progress(ticket);
    if (now.ticket == ticket) slots -= rows - std::min<std::uint64_t>(now.rows, rows);
  }
  return slots;
}

std::size_t Buffer::priority_table() const noexcept {
  for (std::size_t i = 0; i < tables_->size(); ++i) {
    if ((*tables_)[i].spec().has_priorities()) return i;
  }
  return 0;
}

Status Buffer::update(std::size_t table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                      std::span<bool> applied) {
  // Records the changes in an idle sampler's watch, so that it need not scan for them afterwards.
  const std::size_t own = table == Tables::kAll ? 0 : table;
  auto sampler = samplers_.take(own);
  Status updated = tables_->update(table, indices, priorities, applied, sampler ? sampler->watch() : nullptr);
  samplers_.give_back(own, std::move(sampler));
  return updated;
}

}  // namespace shmtree::replay
