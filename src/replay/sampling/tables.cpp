#include "replay/sampling/tables.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <new>
#include <string>

#include "memory/event.h"
#include "platform/errors.h"

namespace shmtree::replay {

using namespace platform;
using memory::round_up;

namespace {

constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << 31;

Error incompatible_tables() {
  return Error{.code = Code::kIncompatible,
               .message = "these are not the sampler tables of a replay buffer of this version"};
}

// Offset of each part, and the total size.
struct TablesPlan {
  std::uint64_t limit = 0, members = 0;
  std::vector<std::uint64_t> tables{};
  std::uint64_t bytes = 0;
};
TablesPlan plan_of(std::uint64_t slots, std::span<const TableSpec> specs, bool has_limit, bool has_members) {
  TablesPlan plan;
  plan.limit = sizeof(TablesHeader) + specs.size() * sizeof(TableHead);
  plan.members = plan.limit + (has_limit ? sizeof(RateLimiterWords) : 0);
  std::uint64_t at = plan.members + (has_members ? sizeof(BufferMemberWords) : 0);
  for (const TableSpec& spec : specs) {
    plan.tables.push_back(at);
    if (spec.has_leaves()) at += Leaves::bytes_for(slots);
    if (spec.max_times != 0) at += round_up(slots * sizeof(std::uint64_t), 64);
  }
  plan.bytes = at;
  return plan;
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", number);
  return text;
}

}  // namespace

Status check_table(const TableSpec& spec) {
  const auto is_number = [](double value) { return value >= 0 && value <= DBL_MAX; };
  if (spec.kind < SamplerKind::kUniform || spec.kind > SamplerKind::kMaxPriority)
    return invalid("a sampler has an unknown kind");
  for (const auto& [name, value] : {std::pair{"alpha", spec.alpha}, {"beta", spec.beta}, {"eps", spec.eps}}) {
    if (is_number(value)) continue;
    std::string message = name;
    message += " is " + std::to_string(value) + "; it must be a finite number of at least 0";
    return invalid(std::move(message));
  }
  return success();
}

Result<std::uint64_t> Tables::bytes_for(const Shape& shape, std::span<const TableSpec> specs, const RateLimit* limit,
                                        bool has_members) try {
  if (specs.empty() || specs.size() > kMaxTables) {
    return invalid(std::to_string(specs.size()) + " samplers; there must be 1 to " + std::to_string(kMaxTables));
  }
  for (const TableSpec& spec : specs) {
    Status good = check_table(spec);
    if (!good) return std::move(good).error();
    if (spec.has_leaves() && shape.slots() > kMaxSlots) {
      return invalid(std::to_string(shape.capacity) +
                     " rows exceed the limit of a sampler with priorities or max_times, " + std::to_string(kMaxSlots));
    }
  }
  if (limit != nullptr) {
    auto checked = RateLimiter::checked(*limit, shape.capacity);
    if (!checked) return std::move(checked).error();
  }
  return plan_of(shape.slots(), specs, limit != nullptr, has_members).bytes;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Tables::add_tables(std::span<const TableSpec> specs, bool has_limit, bool has_members) {
  std::byte* area = store_->tables_area().data();
  auto* heads = reinterpret_cast<TableHead*>(area + sizeof(TablesHeader));
  const TablesPlan plan = plan_of(store_->shape().slots(), specs, has_limit, has_members);
  if (has_members) {
    members_ = BufferMembers::of(store_, *reinterpret_cast<BufferMemberWords*>(area + plan.members));
  }
  if (has_limit) {
    limiter_ = std::make_unique<RateLimiter>(*reinterpret_cast<RateLimiterWords*>(area + plan.limit), store_->arena(),
                                             members_, memory::pack(store_->block()));
  }
  tables_.reserve(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    tables_.emplace_back(store_, specs[i], heads[i], area + plan.tables[i]);
  }
}

Result<std::shared_ptr<Tables>> Tables::create(std::shared_ptr<Store> store, std::span<const TableSpec> specs,
                                               const RateLimit* limit, bool has_members) try {
  auto bytes = bytes_for(store->shape(), specs, limit, has_members);
  if (!bytes) return std::move(bytes).error();
  if (*bytes > store->tables_area().size()) return invalid("the replay buffer has no space for these samplers");
  auto* header = new (store->tables_area().data()) TablesHeader{};
  auto* heads = reinterpret_cast<TableHead*>(header + 1);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto* head = new (&heads[i]) TableHead{};
    head->kind = static_cast<std::uint32_t>(specs[i].kind);
    head->max_times = specs[i].max_times;
    head->alpha = specs[i].alpha;
    head->beta = specs[i].beta;
    head->eps = specs[i].eps;
    store_relaxed(head->max_priority, 1.0);
  }
  const TablesPlan plan = plan_of(store->shape().slots(), specs, limit != nullptr, has_members);
  if (limit != nullptr) {
    auto* words = new (store->tables_area().data() + plan.limit) RateLimiterWords{};
    RateLimiter::make(*words, RateLimiter::checked(*limit, store->shape().capacity).value());
  }
  if (has_members) new (store->tables_area().data() + plan.members) BufferMemberWords{};
  header->count = static_cast<std::uint32_t>(specs.size());
  header->has_limit = limit != nullptr ? 1 : 0;
  header->has_members = has_members ? 1 : 0;
  header->slots = store->shape().slots();
  header->magic = kTablesMagic;
  const std::shared_ptr<Tables> tables(new Tables(std::move(store)));
  tables->add_tables(specs, limit != nullptr, has_members);
  return tables;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::shared_ptr<Tables>> Tables::open(std::shared_ptr<Store> store) try {
  const std::span<std::byte> area = store->tables_area();
  if (area.size() < sizeof(TablesHeader)) return incompatible_tables();
  const auto& header = *reinterpret_cast<const TablesHeader*>(area.data());
  const std::uint32_t count = load_once(header.count);
  if (load_once(header.magic) != kTablesMagic || load_once(header.slots) != store->shape().slots()) {
    return incompatible_tables();
  }
  if (count > kMaxTables || area.size() < sizeof(TablesHeader) + count * sizeof(TableHead))
    return incompatible_tables();
  const auto* heads = reinterpret_cast<const TableHead*>(&header + 1);
  std::vector<TableSpec> specs;
  for (std::uint32_t i = 0; i < count; ++i) {
    specs.push_back({.kind = static_cast<SamplerKind>(load_once(heads[i].kind)),
                     .alpha = load_once(heads[i].alpha),
                     .beta = load_once(heads[i].beta),
                     .eps = load_once(heads[i].eps),
                     .max_times = load_once(heads[i].max_times)});
  }
  auto bytes = bytes_for(store->shape(), specs);
  if (!bytes.ok()) return incompatible_tables();
  const bool has_limit = load_once(header.has_limit) != 0, has_members = load_once(header.has_members) != 0;
  const TablesPlan plan = plan_of(store->shape().slots(), specs, has_limit, has_members);
  if (plan.bytes > area.size()) return incompatible_tables();
  if (has_limit) {
    const auto& words = *reinterpret_cast<const RateLimiterWords*>(area.data() + plan.limit);
    const RateLimit limit{.samples_per_insert = load_once(words.samples_per_insert),
                          .min_size = load_once(words.min_size),
                          .error_buffer = load_once(words.error_buffer)};
    if (!RateLimiter::checked(limit, store->shape().capacity).ok()) return incompatible_tables();
  }
  const std::shared_ptr<Tables> tables(new Tables(std::move(store)));
  tables->add_tables(specs, has_limit, has_members);
  return tables;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::uint64_t Tables::slot_of(std::uint64_t index) const noexcept {
  const Shape& shape = store_->shape();
  return shape.index_of(shape.chunk_of(shape.ticket_of(index)), shape.slot_of(index));
}

void Tables::wake_all() const noexcept {
  memory::notify_all(store_->ready());
  if (limiter_ != nullptr) limiter_->wake_all();
}

Status Tables::clear(const WaitContext& wait) const {
  Status cleared = store_->clear(wait);
  if (!cleared) return cleared;
  for (const Table& table : tables_) {
    for (std::uint64_t chunk = 0; !table.leaves().empty() && chunk < store_->shape().chunks; ++chunk) {
      table.drop_stale(chunk);
    }
  }
  if (limiter_ != nullptr) limiter_->reset();
  return cleared;
}

void Tables::drop_overwritten() const noexcept {
  const Shape& shape = store_->shape();
  const Window window = store_->window();
  const std::uint64_t first = window.tail > shape.chunks ? window.tail - shape.chunks : 1;
  for (std::uint64_t ticket = first; ticket < window.head; ++ticket) {
    for (const Table& table : tables_) {
      if (!table.leaves().empty()) table.drop_stale(shape.chunk_of(ticket));
    }
  }
}

void Tables::raise_max_priority(std::size_t table, double priority) const noexcept {
  const Table& one = tables_[table];
  if (priority <= one.priority_limit()) one.raise_max_priority(priority);
}

void Tables::put_back(std::size_t table, std::uint64_t index, float weight) const noexcept {
  tables_[table].put_back(slot_of(index), store_->shape().ticket_of(index), weight);
}

void Tables::after_open(std::uint64_t ticket) noexcept {
  const std::uint64_t first = slot_of(store_->shape().index_of(ticket, 0));
  for (const Table& table : tables_) {
    if (!table.leaves().empty()) table.open(first, ticket);
  }
}

void Tables::before_ready(std::uint64_t first, std::span<const float> priorities) noexcept {
  for (const Table& table : tables_) {
    if (table.leaves().empty()) continue;
    table.make_ready(slot_of(first), store_->shape().ticket_of(first), priorities);
  }
}

Status Tables::check_priorities(std::span<const double> priorities, std::size_t table) const {
  double most = DBL_MAX;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (table == kAll || table == i) most = std::min(most, tables_[i].priority_limit());
  }
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    const double priority = priorities[i];
    if (priority >= 0 && priority <= most) continue;
    const bool is_large = priority > most && priority <= DBL_MAX;
    return or_out_of_memory([&]() -> Status {
      const std::string why = is_large ? "at most " + number_text(most) + ", because of the sampler's exponent"
                                       : "a finite number of at least 0";
      return invalid("priority number " + std::to_string(i) + " is " + number_text(priority) + "; it must be " + why);
    });
  }
  return success();
}

Status Tables::check_indices(std::span<const std::uint64_t> indices) const {
  const Shape& shape = store_->shape();
  const std::uint64_t end = shape.index_of(store_->window().tail, 0);
  for (const std::uint64_t index : indices) {
    if (index == kNoRow) continue;
    const std::uint64_t ticket = shape.ticket_of(index);
    bool was_given = ticket != 0 && index < end;
    if (was_given) {
      const Progress now = store_->progress(ticket);
      was_given = now.ticket != ticket || shape.slot_of(index) < now.rows;
    }
    if (was_given) continue;
    return or_out_of_memory([&]() -> Status {
      return invalid("index " + std::to_string(index) + " is not the index of a row that was added");
    });
  }
  return success();
}

Status Tables::update(std::size_t table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                      std::span<bool> applied, LeafWatch* own) const try {
  if (indices.size() != priorities.size() || indices.size() != applied.size()) {
    return invalid(std::to_string(indices.size()) + " indices and " + std::to_string(priorities.size()) +
                   " priorities; there must be as many of both");
  }
  const auto is_meant = [&](std::size_t i) {
    return tables_[i].spec().has_priorities() && (table == kAll || table == i);
  };
  bool is_any = false;
  for (std::size_t i = 0; i < tables_.size(); ++i) is_any = is_any || is_meant(i);
  if (!is_any) return invalid("the sampler has no priorities to set");
  Status good = check_priorities(priorities, table);
  if (good.ok()) good = check_indices(indices);
  if (!good.ok()) return good;
  if (own != nullptr) own->reserve(indices.size());
  std::fill(applied.begin(), applied.end(), false);
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (is_meant(i)) apply(tables_[i], indices, priorities, applied, own);
  }
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Tables::apply(const Table& table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                   std::span<bool> applied, LeafWatch* own) const noexcept {
  constexpr std::size_t kAhead = 16;
  const std::uint64_t head = store_->window().head;
  if (own != nullptr && !own->is_of(table.leaves())) own = nullptr;
  const auto fetch = [&](std::uint64_t slot) {
    table.leaves().fetch(slot);
    if (own != nullptr) own->fetch(slot);
  };
  double most = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size() && indices[i + kAhead] != kNoRow) fetch(slot_of(indices[i + kAhead]));
    if (indices[i] == kNoRow) continue;
    const std::uint64_t slot = slot_of(indices[i]), ticket = store_->shape().ticket_of(indices[i]);
    if (ticket < head || !table.update(slot, ticket, priorities[i])) continue;
    applied[i] = true;
    most = std::max(most, priorities[i]);
    own != nullptr ? own->changed(slot) : table.leaves().changed(slot);
  }
  table.raise_max_priority(most);
}

}  // namespace shmtree::replay
