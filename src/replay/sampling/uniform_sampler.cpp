#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "replay/sampling/sampler.h"
#include "replay/sampling/slot_set.h"

namespace shmtree::replay {

namespace {

// Random tries per requested row, plus kMoreTries in total, before the sampler lists all rows.
constexpr std::size_t kTries = 64, kTriesOfDistinct = 4, kMoreTries = 1024;

// Samples all rows of the window with the same probability. Needs only the window, and ignores the table's leaves.
class UniformSampler final : public Sampler {
 public:
  UniformSampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept
      : Sampler(std::move(tables), table, seed) {}

 private:
  Status find(const Sample& chosen, bool distinct) override;
  double total() const noexcept override { return static_cast<double>(store().size()); }
  bool takes_leaves() const noexcept override { return false; }
  Status find_among_all(const Sample& chosen, bool distinct);

  SlotSet found_;
  std::vector<std::uint64_t> tried_;
};

Status UniformSampler::find(const Sample& chosen, bool distinct) {
  const Shape& shape = store().shape();
  found_.clear(distinct ? chosen.indices.size() : 0);
  for (std::size_t at = 0; distinct && at < chosen.indices.size(); ++at) {
    if (chosen.weights[at] > 0) found_.add(chosen.indices[at]);
  }
  for (const std::uint64_t index : refused()) found_.add(index);
  std::size_t tries = (distinct ? kTriesOfDistinct : kTries) * positions_.size() + kMoreTries;
  while (!positions_.empty()) {
    const Window window = store().window();
    const std::uint64_t first = shape.index_of(window.head, 0), count = shape.index_of(window.tail, 0) - first;
    if (count == 0 || tries < positions_.size()) return find_among_all(chosen, distinct);
    tries -= positions_.size();
    tried_.resize(positions_.size());
    for (std::uint64_t& index : tried_) {
      index = first + random().below(count);
      store().fetch_progress_of_chunk(shape.chunk_of(shape.ticket_of(index)));
    }
    std::size_t left = 0;
    for (std::size_t i = 0; i < tried_.size(); ++i) {
      const std::uint64_t index = tried_[i];
      const bool is_there = store().has_row(shape.ticket_of(index), shape.slot_of(index));
      if (!is_there || (distinct ? !found_.add(index) : found_.contains(index))) {
        positions_[left++] = positions_[i];
        continue;
      }
      chosen.indices[positions_[i]] = index;
      chosen.weights[positions_[i]] = 1;
    }
    positions_.resize(left);
  }
  return success();
}

// Lists all rows and chooses from the list, if random tries fail: rows are few, or nearly all of them are requested.
Status UniformSampler::find_among_all(const Sample& chosen, bool distinct) {
  const Shape& shape = store().shape();
  const Window window = store().window();
  std::vector<std::uint64_t>& all = tried_;
  all.clear();
  const std::uint64_t end = shape.index_of(window.tail, 0);
  for (std::uint64_t index = shape.index_of(window.head, 0); index < end; ++index) {
    const bool is_there = store().has_row(shape.ticket_of(index), shape.slot_of(index));
    if (is_there && !found_.contains(index)) all.push_back(index);
  }
  if (all.empty() || (distinct && all.size() < positions_.size())) {
    return too_few(chosen.indices.size(), distinct ? found_.size() - refused().size() + all.size() : 0);
  }
  for (const std::uint32_t position : positions_) {
    const std::uint64_t at = random().below(all.size());
    chosen.indices[position] = all[at];
    chosen.weights[position] = 1;
    if (!distinct) continue;
    all[at] = all.back();
    all.pop_back();
  }
  positions_.clear();
  return success();
}

}  // namespace

SamplerPtr make_uniform_sampler(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) {
  return std::make_unique<UniformSampler>(std::move(tables), table, seed);
}

}  // namespace shmtree::replay
