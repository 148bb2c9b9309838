#include "bindings/replay/batch.h"

#include <algorithm>
#include <string>

#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/lease.h"
#include "bindings/replay/until_closed.h"
#include "memory/event.h"
#include "platform/copy.h"
#include "platform/machine.h"
#include "replay/sample.h"
#include "replay/sequences.h"

namespace shmtree::python {

namespace py = pybind11;
using platform::WaitContext;
using replay::Picks;

namespace {

// The index of the row that was added last, about: the newest place's.
std::int64_t newest_of(const replay::Store& store) noexcept {
  const std::uint64_t last = store.window().tail - 1, rows = store.shape().rows_per_place;
  const replay::Progress now = store.progress(last);
  return static_cast<std::int64_t>(last * rows + (now.ticket == last ? now.rows : rows)) - 1;
}

// sample(), again until there is something to be drawn.
template <class Sample>
Status when_there(memory::Event& ready, const WaitContext& wait, Sample sample) {
  Status drawn = sample();
  if (drawn || drawn.code() != Code::kEmpty) return drawn;
  memory::EventWait waiting(ready, wait);
  for (;;) {
    waiting.arm();
    drawn = sample();
    if (drawn || drawn.code() != Code::kEmpty) break;
    const auto woken = waiting.sleep();
    if (woken == memory::EventWait::Wake::kInterrupted) return Error{.code = Code::kInterrupted, .message = {}};
    if (woken == memory::EventWait::Wake::kTimedOut) break;
  }
  memory::notify(ready);  // others wait for the same rows
  return drawn;
}

// The same where so many may be drawn only.
template <class Sample>
Status within_limit(const Replay& replay, std::size_t count, const WaitContext& wait, Sample sample) {
  replay::Limit* const limit = replay.tables->limit();
  if (limit == nullptr) return when_there(replay.store->ready(), wait, sample);
  Status taken = limit->take_samples(count, wait);
  if (!taken) return taken;
  Status drawn = when_there(replay.store->ready(), wait, sample);
  if (drawn) {
    limit->use_samples(count);
  } else {
    limit->give_back_samples(count);
  }
  return drawn;
}

}  // namespace

ReplayBatch::ReplayBatch(const std::shared_ptr<Replay>& replay, const DrawTerms& terms,
                         const platform::Deadline& deadline, std::span<std::byte* const> out)
    : replay_(replay), terms_(terms) {
  plan(out.empty());
  take_memory();
  data_ = memory_.get();
  draw(deadline, out);
  newest_ = newest_of(*replay->store);
  lease_ = own(new_lease(memory_, data_, at_.back(), true));
}

void ReplayBatch::refuse(std::size_t row_bytes) const {
  std::string rows = std::to_string(terms_.rows);
  if (terms_.length != 0) rows += " x " + std::to_string(terms_.length);
  throw py::value_error("n is " + std::to_string(terms_.rows) + ": a batch of " + rows + " rows of " +
                        std::to_string(row_bytes) + " bytes, where the machine has " +
                        std::to_string(platform::available_memory_bytes()) + " bytes left, and at most " +
                        std::to_string(kMostRows) + " rows are drawn at once");
}

void ReplayBatch::take_memory() {
  try {
    memory_ = replay_->pool->take(at_.back());
  } catch (const std::bad_alloc&) {
    refuse(at_.back() / terms_.all_rows());
  }
}

void ReplayBatch::plan(bool has_data) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 46;
  const bool is_single = terms_.length == 0;
  std::size_t rows = terms_.rows, row_bytes = 64;
  for (std::size_t i = 0; i < replay_->gather.options().outputs.size(); ++i) row_bytes += replay_->gather.bytes(i);
  if ((!is_single && __builtin_mul_overflow(rows, terms_.length, &rows)) || rows > kMostRows ||
      rows > kMostBytes / row_bytes) {
    refuse(row_bytes);
  }
  const bool has_priorities = is_single && (*replay_->tables)[terms_.table].spec().has_priorities();
  const std::size_t data = replay_->nests.data->leaves().size();
  at_.push_back(0);
  const auto next = [&](std::size_t bytes) {
    at_.push_back(memory::round_up(at_.back() + bytes * terms_.all_rows(), BatchPool::kAlignment));
  };
  next(sizeof(std::uint64_t));
  next(is_single ? sizeof(float) : 0);
  next(has_priorities ? sizeof(double) : 0);
  next(has_priorities ? sizeof(float) : 0);
  next(is_single ? 0 : sizeof(bool));
  for (std::size_t i = 0; i < replay_->gather.options().outputs.size(); ++i) {
    next(has_data || i >= data ? replay_->gather.bytes(i) : 0);
  }
}

void ReplayBatch::draw(const platform::Deadline& deadline, std::span<std::byte* const> out) {
  std::vector<std::byte*> places(replay_->gather.options().outputs.size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = i < out.size() ? out[i] : data_ + at_[kOutputs + i];
    bytes += terms_.all_rows() * replay_->gather.bytes(i);
  }
  BorrowedDrawer drawer(*replay_, terms_.table);
  Status drawn = with_hooks(bytes > platform::kLongCopyBytes || terms_.threads > 1, [&](platform::WaitHooks& hooks) {
    UntilClosed until(hooks, replay_->closed);
    const WaitContext wait{deadline, &until};
    return terms_.length == 0 ? draw_rows(places, *drawer, wait) : draw_sequences(places, wait);
  });
  if (drawn) return;
  raise_waited(drawn.error(), replay_->closed, "this replay buffer was closed in this process");
  throw py::error_already_set();
}

Status ReplayBatch::draw_rows(std::span<std::byte* const> places, replay::Drawer& drawer, const WaitContext& wait) {
  const Picks picks{numbers<std::uint64_t>(kIndices), numbers<float>(kWeights)};
  replay::Sampling sampling(drawer, replay_->gather, picks, places, terms_.distinct, terms_.threads);
  Status drawn = within_limit(*replay_, terms_.rows, wait, [&] { return sampling.sample(); });
  if (!drawn) return drawn;
  drawer.describe(picks, numbers<double>(kProbabilities), numbers<float>(kImportances), terms_.beta, terms_.of_buffer);
  return drawn;
}

Status ReplayBatch::draw_sequences(std::span<std::byte* const> places, const WaitContext& wait) {
  const auto partial = terms_.may_be_partial ? replay::Partial::kPad : replay::Partial::kRefuse;
  replay::Sequences sequences(replay_->store, {terms_.length, terms_.stride, partial}, new_seed(*replay_));
  return within_limit(*replay_, terms_.rows, wait, [&] {
    return sequences.sample(replay_->gather, numbers<std::uint64_t>(kIndices), numbers<bool>(kMask), places,
                            terms_.threads);
  });
}

// A view of the batch's memory.
Ref ReplayBatch::array_at(std::byte* data, PyArray_Descr* descr, std::span<const npy_intp> shape) const {
  npy_intp dims[NPY_MAXDIMS] = {static_cast<npy_intp>(terms_.rows), static_cast<npy_intp>(terms_.length)};
  const std::size_t front = terms_.length == 0 ? 1 : 2;
  std::copy(shape.begin(), shape.end(), dims + front);
  Py_INCREF(descr);
  Ref array(PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(shape.size() + front), dims, nullptr, data,
                                 NPY_ARRAY_WRITEABLE, nullptr));
  if (!array || PyArray_SetBaseObject(as_array(array.get()), Py_NewRef(lease_.ptr())) != 0) return Ref();
  return array;
}

py::object ReplayBatch::number_array(std::size_t part, int type) const {
  const Ref descr(reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)));
  return own(array_at(data_ + at_[part], reinterpret_cast<PyArray_Descr*>(descr.get()), {}).release());
}

py::object ReplayBatch::data() const {
  const auto leaves = replay_->nests.data->leaves();
  std::vector<Ref> arrays;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    arrays.push_back(array_at(data_ + at_[kOutputs + i], leaves[i].descr(), leaves[i].shape));
    if (!arrays.back()) throw py::error_already_set();
  }
  return own(replay_->nests.data->build(arrays).release());
}

// An array of its own, of that type and filled with a number.
py::object ReplayBatch::filled(int type, double value) const {
  npy_intp dims[] = {static_cast<npy_intp>(terms_.rows), static_cast<npy_intp>(terms_.length)};
  py::object array = own(PyArray_SimpleNew(terms_.length == 0 ? 1 : 2, dims, type));
  const py::float_ number(value);
  if (PyArray_FillWithScalar(as_array(array.ptr()), number.ptr()) != 0) throw py::error_already_set();
  return array;
}

py::object ReplayBatch::weight() const {
  return numbers<float>(kImportances).empty() ? filled(NPY_FLOAT, 1) : number_array(kImportances, NPY_FLOAT);
}

py::object ReplayBatch::probability() const {
  if (!numbers<double>(kProbabilities).empty()) return number_array(kProbabilities, NPY_DOUBLE);
  return filled(NPY_DOUBLE, 1 / static_cast<double>(std::max<std::uint64_t>(replay_->store->size(), 1)));
}

py::object ReplayBatch::priority() const {
  const replay::Table& table = (*replay_->tables)[terms_.table];
  py::object array = filled(NPY_FLOAT, 1);
  if (!table.spec().has_priorities() || terms_.length != 0) return array;
  auto* const out = static_cast<float*>(PyArray_DATA(as_array(array.ptr())));
  std::ranges::transform(numbers<float>(kWeights), out,
                         [&](float weight) { return static_cast<float>(table.priority_of(weight)); });
  return array;
}

py::object ReplayBatch::extra(std::size_t number, int type) const {
  return number_array(kOutputs + replay_->nests.data->leaves().size() + number, type);
}

}  // namespace shmtree::python
