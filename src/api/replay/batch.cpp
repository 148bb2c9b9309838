// Implements ReplayBatch.
#include <algorithm>

#include "api/replay/replay_state.h"
#include "platform/never_destroyed.h"

namespace shmtree {

using replay::SpecLeaf;

namespace api {

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, std::uint64_t item_bytes) {
  std::vector<std::int64_t> strides(shape.size());
  auto stride = static_cast<std::int64_t>(item_bytes);
  for (std::size_t k = shape.size(); k-- > 0; stride *= shape[k]) strides[k] = stride;
  return strides;
}

// Computes what C++ programs get in addition to the batch: priorities, ages, shapes, strides, and default weights and
// probabilities.
void ReplayBatchState::describe() {
  const std::size_t rows = batch.terms().all_rows();
  priorities.resize(rows);
  batch.priorities(priorities);
  if (batch.importances().empty()) weights.assign(rows, 1);
  if (batch.probabilities().empty()) probabilities.assign(rows, batch.even_probability());
  for (const std::uint64_t index : batch.indices()) {
    ages.push_back(std::max<std::int64_t>(batch.newest() - static_cast<std::int64_t>(index), 0));
  }
  const replay::Spec& spec = core->buffer->spec();
  for (std::size_t i = 0; i < spec.data_outputs(); ++i) {
    const std::vector<std::int64_t>& shape = shapes.emplace_back(shape_of_output(spec, i, batch.terms()));
    strides.push_back(strides_of(shape, spec.output(i).item_bytes));
  }
}

std::vector<std::int64_t> shape_of_output(const replay::Spec& spec, std::size_t number,
                                          const replay::SampleTerms& terms) {
  const SpecLeaf leaf = spec.output(number);
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(terms.rows)};
  if (terms.length != 0) shape.push_back(static_cast<std::int64_t>(terms.length));
  shape.insert(shape.end(), leaf.shape.begin(), leaf.shape.end());
  return shape;
}

Error other_dtype(std::string_view path, std::string_view dtype) {
  return Error{Code::kInvalid, "the leaf \"" + std::string(path) + "\" is of " + std::string(dtype) +
                                   ", a dtype without arrays in C++"};
}

std::span<const std::int64_t> ReplayBatchState::extra(std::size_t number) const noexcept {
  const std::byte* const at = batch.output(core->buffer->spec().data_outputs() + number);
  return {reinterpret_cast<const std::int64_t*>(at), batch.terms().all_rows()};
}

}  // namespace api

std::size_t ReplayBatch::size() const noexcept {
  return state_ == nullptr ? 0 : state_->batch.terms().rows;
}
std::size_t ReplayBatch::length() const noexcept {
  return state_ == nullptr ? 0 : state_->batch.terms().length;
}
Held<std::span<const std::int64_t>> ReplayBatch::index() const noexcept {
  if (state_ == nullptr) return {};
  const auto indices = state_->batch.indices();
  return {{reinterpret_cast<const std::int64_t*>(indices.data()), indices.size()}, state_};
}
Held<std::span<const float>> ReplayBatch::weight() const noexcept {
  if (state_ == nullptr) return {};
  if (state_->weights.empty()) return {state_->batch.importances(), state_};
  return {state_->weights, state_};
}
Held<std::span<const double>> ReplayBatch::probability() const noexcept {
  if (state_ == nullptr) return {};
  if (state_->probabilities.empty()) return {state_->batch.probabilities(), state_};
  return {state_->probabilities, state_};
}
Held<std::span<const float>> ReplayBatch::priority() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->priorities, state_};
}
Held<std::span<const std::int64_t>> ReplayBatch::age() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->ages, state_};
}
Held<std::span<const std::int64_t>> ReplayBatch::version() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->extra(0), state_};
}
Held<std::span<const std::int64_t>> ReplayBatch::writer() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->extra(1), state_};
}
Held<std::span<const std::int64_t>> ReplayBatch::step() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->extra(2), state_};
}
Held<std::span<const float>> ReplayBatch::discount() const noexcept {
  if (state_ == nullptr) return {};
  const replay::Spec& spec = state_->core->buffer->spec();
  if (!spec.has_discount()) return {};
  const std::byte* const at = state_->batch.output(spec.data_outputs() + 3);
  return {{reinterpret_cast<const float*>(at), state_->batch.terms().all_rows()}, state_};
}
Held<std::span<const std::int64_t>> ReplayBatch::goal_index() const noexcept {
  if (state_ == nullptr) return {};
  const auto goals = state_->batch.goals();
  return {{reinterpret_cast<const std::int64_t*>(goals.data()), goals.size()}, state_};
}
Held<std::span<const bool>> ReplayBatch::mask() const noexcept {
  if (state_ == nullptr) return {};
  return {state_->batch.mask(), state_};
}
std::size_t ReplayBatch::first_row(std::size_t sequence) const noexcept {
  if (sequence >= size() || length() == 0) return 0;
  const std::span<const bool> rows = state_->batch.mask().subspan(sequence * length(), length());
  return static_cast<std::size_t>(std::ranges::find(rows, true) - rows.begin());
}
const std::vector<std::string>& ReplayBatch::paths() const& noexcept {
  return state_ == nullptr ? platform::never_destroyed<std::vector<std::string>>() : state_->core->paths.outputs;
}

Result<ArrayView> ReplayBatch::try_view(std::string_view path) const {
  if (state_ == nullptr) return closed_here("ReplayBatch");
  const auto found = std::ranges::find(paths(), path);
  if (found == paths().end()) return Error{Code::kNotFound, "the batch has no leaf \"" + std::string(path) + "\""};
  if (!state_->has_data && state_->arrays.empty()) {
    return Error{Code::kInvalid,
                 "the batch was sampled into the caller's memory (out) and has no view of \"" + *found + "\""};
  }
  const auto number = static_cast<std::size_t>(found - paths().begin());
  const replay::Spec& spec = state_->core->buffer->spec();
  const SpecLeaf& leaf =
      number < spec.leaves.size() ? spec.leaves[number] : spec.leaves[spec.next[number - spec.leaves.size()]];
  ArrayView view{
      .dtype = replay::dtype_of(leaf.dtype), .shape = state_->shapes[number], .strides = state_->strides[number]};
  if (view.dtype == DType::kOther) view.description = leaf.dtype;
  if (state_->has_data) {
    view.data = state_->batch.output(number);
  } else {
    view.data = static_cast<const std::byte*>(state_->arrays[number].data);
    const std::lock_guard guard(state_->core->arena->mutex);
    view.read_only = static_cast<const api::Loan*>(state_->arrays[number].owner.get())->claims.are_given(nullptr);
  }
  view.item_bytes = leaf.item_bytes;
  view.elements = 1;
  for (const std::int64_t size : view.shape) view.elements *= static_cast<std::size_t>(size);
  view.c_order = true;
  return view;
}

Result<ArrayRef> ReplayBatch::array_ref(std::string_view path) const {
  auto view = try_view(path);
  if (!view) return std::move(view).error();
  if (view->dtype == DType::kOther) return api::other_dtype(path, view->description);
  if (!state_->arrays.empty()) {
    const auto number = std::ranges::find(paths(), path) - paths().begin();
    return state_->arrays[static_cast<std::size_t>(number)];
  }
  ArrayRef array{.data = view->data, .dtype = view->dtype, .shape = {view->shape.begin(), view->shape.end()}};
  array.owner = state_;
  return array;
}

}  // namespace shmtree
