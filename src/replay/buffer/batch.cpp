#include "replay/buffer/batch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "memory/event.h"
#include "platform/file.h"
#include "platform/huge_pages.h"
#include "platform/memory_limits.h"
#include "replay/rate_limiter/rate_limiter.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

namespace {

constexpr std::size_t kMaxPieces = 4;  // for two threads, each with a batch in use and one being sampled
// Largest ratio of a reused piece to the request. Larger pieces are left for larger requests.
constexpr std::size_t kMaxWaste = 4;
// From this size on, make() checks the available memory. The system may promise memory that it does not have, and later
// kill the process that uses it.
constexpr std::size_t kLarge = std::size_t{1} << 30;

bool is_empty(const Status& sampled) {
  return !sampled && sampled.code() == Code::kEmpty;
}

// Calls act() until it finds rows to sample. Fails if all writers were killed.
template <class Act>
Status when_there(const Tables& tables, const WaitContext& wait, Act act) {
  Status sampled = act();
  if (!is_empty(sampled)) return sampled;
  const auto& store = *tables.store();
  const memory::TakingCondition ready([&] {
    sampled = act();
    return !is_empty(sampled);
  });
  const auto check_members = [&](bool) -> Result<bool> {
    Status alive = tables.writers() == nullptr ? success() : tables.writers()->check();
    if (alive) return false;
    if (ready()) return true;  // all rows of the writers were added before they died
    return std::move(alive).error();
  };
  const memory::SleepReason reason{store.arena()->participants(), memory::WaitFor::kRows, memory::pack(store.block())};
  memory::EventWait waiting(store.ready(), reason, wait);
  auto came = memory::wait_until(waiting, wait, "rows", ready, check_members);
  memory::notify(store.ready());  // passes the wake-up on, since other samplers wait for the same rows
  return came ? std::move(sampled) : std::move(came).error();
}

template <class Number>
void store_as(double value, std::byte* to) noexcept {
  const auto number = static_cast<Number>(value);
  std::memcpy(to, &number, sizeof number);
}

// Writes a number as an element of that type. float16 takes 0 and 1 only.
void store_number(DType dtype, double value, std::byte* to) noexcept {
  switch (item_bytes(dtype)) {
    case 1: return store_as<std::uint8_t>(value, to);
    case 2: return store_as<std::uint16_t>(dtype == DType::kFloat16 && value != 0 ? 0x3c00 : value, to);
    case 4: return dtype == DType::kFloat32 ? store_as<float>(value, to) : store_as<std::uint32_t>(value, to);
    case 8: return dtype == DType::kFloat64 ? store_as<double>(value, to) : store_as<std::uint64_t>(value, to);
    default: return;
  }
}

// Takes the credits for `count` rows first, if there is a rate limiter.
template <class Act>
Status within_limit(const Buffer& buffer, std::size_t count, const WaitContext& wait, Act act) {
  RateLimiter* const limiter = buffer.tables()->limiter();
  if (limiter == nullptr) return when_there(*buffer.tables(), wait, act);
  Status taken = limiter->take_samples(count, wait);
  if (!taken) return taken;
  Status sampled = when_there(*buffer.tables(), wait, act);
  if (sampled) {
    limiter->use_samples(count);
  } else {
    limiter->give_back_samples(count);
  }
  return sampled;
}

}  // namespace

// --- BatchPool

void BatchPool::Free::operator()(std::byte* data) const noexcept {
  std::free(data);
}

BatchPool::BatchPool() {
  pieces_.reserve(kMaxPieces);
}

BatchPool::Piece BatchPool::make(std::size_t bytes) {
  using platform::kHugeBytes;
  if (bytes > kLarge && bytes > platform::available_memory_bytes()) throw std::bad_alloc();
  const std::size_t alignment = bytes >= kHugeBytes ? kHugeBytes / 2 : kAlignment;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  Piece piece{.data = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(std::aligned_alloc(alignment, size))),
              .bytes = size};
  if (!piece.data) throw std::bad_alloc();
  if (bytes >= kHugeBytes) platform::advise_huge(piece.data.get(), size);
  return piece;
}

BatchPool::Piece BatchPool::find(std::size_t bytes) noexcept {
  const std::lock_guard guard(mutex_);
  const auto fits = std::find_if(pieces_.rbegin(), pieces_.rend(), [bytes](const Piece& piece) {
    return piece.bytes >= bytes && piece.bytes / kMaxWaste <= bytes;
  });
  if (fits == pieces_.rend()) return {};
  Piece found = std::move(*fits);
  pieces_.erase(std::next(fits).base());
  return found;
}

std::shared_ptr<std::byte> BatchPool::take(std::size_t bytes) {
  Piece found = find(bytes);
  if (!found.data) found = make(bytes);
  std::byte* const data = found.data.get();
  auto give_back = [pool = weak_from_this(), piece = std::make_shared<Piece>(std::move(found))](std::byte*) noexcept {
    if (const auto owner = pool.lock()) owner->give_back(std::move(*piece));
  };
  return std::shared_ptr<std::byte>(data, std::move(give_back));
}

void BatchPool::give_back(Piece piece) noexcept {
  Piece oldest;  // freed after the mutex is unlocked
  const std::lock_guard guard(mutex_);
  if (pieces_.size() == kMaxPieces) {
    oldest = std::move(pieces_.front());
    pieces_.erase(pieces_.begin());
  }
  pieces_.push_back(std::move(piece));  // does not allocate: the space was reserved
}

// --- Batch

std::size_t Batch::row_bytes(const Buffer& buffer) noexcept {
  std::size_t bytes = 64;  // approximate size of index, weight and so on
  for (std::size_t i = 0; i < buffer.gather().options().outputs.size(); ++i) bytes += buffer.gather().bytes(i);
  return bytes;
}

Batch::Batch(std::shared_ptr<Buffer> buffer, BatchPool& pool, const SampleTerms& terms, bool has_data)
    : buffer_(std::move(buffer)), terms_(terms) {
  check_size();
  plan(has_data);
  memory_ = pool.take(at_.back());
}

void Batch::check_size() const {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 46;
  std::size_t rows = terms_.rows;
  const bool overflows = terms_.length != 0 && __builtin_mul_overflow(rows, terms_.length, &rows);
  if (overflows || rows > kMaxRows || rows > kMaxBytes / row_bytes(*buffer_)) throw std::bad_alloc();
}

void Batch::plan(bool has_data) {
  const bool is_single = terms_.length == 0;
  const bool has_priorities = terms_.by_table() && (*buffer_->tables())[terms_.table].spec().has_priorities();
  at_.push_back(0);
  const auto next = [&](std::size_t bytes) {
    at_.push_back(memory::round_up(at_.back() + bytes * terms_.all_rows(), BatchPool::kAlignment));
  };
  next(sizeof(std::uint64_t));
  next(terms_.by_table() ? sizeof(float) : 0);
  next(has_priorities ? sizeof(double) : 0);
  next(has_priorities ? sizeof(float) : 0);
  next(is_single ? 0 : sizeof(bool));
  next(terms_.hindsight ? sizeof(std::uint64_t) : 0);
  for (std::size_t i = 0; i < outputs(); ++i) {
    next(has_data || i >= buffer_->spec().data_outputs() ? buffer_->gather().bytes(i) : 0);
  }
}

std::uint64_t Batch::copied_bytes() const noexcept {
  std::uint64_t row_bytes = 0;
  for (std::size_t i = 0; i < outputs(); ++i) row_bytes += buffer_->gather().bytes(i);
  return row_bytes * terms_.all_rows();
}

Status Batch::sample(std::span<std::byte* const> out, const WaitContext& wait) {
  if (terms_.length != 0 && buffer_->spec().ends_unknown) return no_ends("sample_sequences");
  if (Status joined = buffer_->sampling().begin(); !joined) return joined;
  data_.resize(outputs());
  for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = i < out.size() ? out[i] : output(i);
  Status sampled = terms_.length == 0 ? sample_rows(data_, wait) : sample_sequences(data_, wait);
  if (sampled && terms_.hindsight) sampled = relabel(*buffer_, *terms_.hindsight, indices(), data_, goals());
  newest_ = buffer_->newest();
  if (sampled) {
    const auto versions = numbers<std::int64_t>(kOutputs + buffer_->spec().data_outputs());
    buffer_->statistics().add(indices(), versions, mask(), newest_);
  }
  return sampled;
}

Status Batch::sample_rows(std::span<std::byte* const> destinations, const WaitContext& wait) {
  auto sampler = BorrowedSampler::take(*buffer_, terms_.table);
  if (!sampler) return std::move(sampler).error();
  const Sample chosen{indices(), numbers<float>(kWeights)};
  Status sampled = within_limit(*buffer_, terms_.rows, wait, [&] {
    return (**sampler).sample_and_copy(buffer_->gather(), chosen, destinations, terms_.distinct, terms_.threads);
  });
  if (sampled) (**sampler).describe(chosen, probabilities(), importances(), terms_.beta, terms_.of_buffer);
  return sampled;
}

Status Batch::sample_sequences(std::span<std::byte* const> destinations, const WaitContext& wait) {
  if (!terms_.any_first) {
    auto sampler = BorrowedSampler::take(*buffer_, terms_.table);
    if (!sampler) return std::move(sampler).error();
    return sample_sequences_of(**sampler, destinations, wait);
  }
  if (terms_.distinct && terms_.partial != Partial::kWhole) {
    const SamplerPtr any = make_uniform_sampler(buffer_->tables(), terms_.table, buffer_->new_seed());
    return sample_sequences_of(*any, destinations, wait);
  }
  SequenceSampler sequences(buffer_->store(), terms_.sequences(), buffer_->new_seed());
  Status sampled = within_limit(*buffer_, terms_.rows, wait, [&] {
    return sequences.sample(buffer_->gather(), indices(), mask(), destinations, terms_.threads);
  });
  if (sampled) (*buffer_->tables())[terms_.table].count_samples(terms_.rows);
  return sampled;
}

// Copies the weights of the first rows to all rows of their sequences.
Status Batch::sample_sequences_of(Sampler& sampler, std::span<std::byte* const> destinations, const WaitContext& wait) {
  SequenceSampler sequences(buffer_->store(), terms_.sequences(), buffer_->new_seed());
  std::vector<std::uint64_t> firsts(terms_.rows);
  std::vector<float> weights(terms_.rows);
  const Sample chosen{firsts, weights};
  Status sampled = within_limit(*buffer_, terms_.rows, wait, [&] {
    return sequences.sample(sampler, chosen, terms_.distinct, buffer_->gather(), indices(), mask(), destinations,
                            terms_.threads);
  });
  if (!sampled || terms_.any_first) return sampled;
  const auto first = [&](auto all) { return all.first(all.empty() ? 0 : terms_.rows); };
  sampler.describe(chosen, first(probabilities()), first(importances()), terms_.beta, terms_.of_buffer);
  std::ranges::copy(weights, numbers<float>(kWeights).begin());
  const auto spread = [&](auto all) {
    for (std::size_t i = all.size(); i-- > 0;) all[i] = all[i / terms_.length];
  };
  spread(probabilities());
  spread(importances());
  spread(numbers<float>(kWeights));
  return sampled;
}

void Batch::set_rewards(std::span<const double> rewards, std::span<const bool> terminated) const noexcept {
  const Spec& spec = buffer_->spec();
  const auto store = [&](std::size_t leaf, std::size_t row, double value) {
    store_number(dtype_of(spec.leaves[leaf].dtype), value, data_[leaf] + row * spec.leaves[leaf].item_bytes);
  };
  const auto is_cut_off = [&](std::size_t row) {
    const std::size_t bytes = spec.leaves[*spec.truncated].item_bytes;
    const std::byte* const value = data_[*spec.truncated] + row * bytes;
    return std::any_of(value, value + bytes, [](std::byte byte) { return byte != std::byte{0}; });
  };
  const std::optional<std::size_t> end = spec.terminated ? spec.terminated : spec.done;
  for (std::size_t row = 0, at = 0; row < goals().size(); ++row) {
    if (goals()[row] == kNoRow) continue;
    const std::size_t i = at++;
    store(*spec.reward, row, rewards[i]);
    if (terminated.empty()) continue;
    if (end) store(*end, row, terminated[i] ? 1 : 0);
    if (spec.terminated && spec.truncated && spec.done)
      store(*spec.done, row, terminated[i] || is_cut_off(row) ? 1 : 0);
    const float discount = terminated[i] ? 0 : static_cast<float>(spec.gamma);
    std::memcpy(output(spec.data_outputs() + 3) + row * sizeof discount, &discount, sizeof discount);
  }
}

void Batch::priorities(std::span<float> out) const noexcept {
  std::ranges::fill(out, 1.0f);
  const Table& table = (*buffer_->tables())[terms_.table];
  if (!table.spec().has_priorities() || !terms_.by_table()) return;
  std::ranges::transform(numbers<float>(kWeights), out.begin(),
                         [&](float weight) { return static_cast<float>(table.priority_of(weight)); });
}

}  // namespace shmtree::replay
