// A batch as an object of Python's has it: its memory, and where in it each of its arrays lies.
//
// All calls need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <vector>

#include "bindings/replay/replay.h"

namespace shmtree::python {

// How rows are drawn.
struct DrawTerms {
  std::size_t rows = 0, table = 0;
  bool distinct = false;
  unsigned threads = 1;
  double beta = 0.4;
  bool of_buffer = false;  // importances are relative to all rows, and not to the batch
  // Of sequences, `rows` is how many there are: rows after the first one, from one to the next, and whether fewer do.
  std::size_t length = 0;  // 0: single rows
  std::size_t stride = 1;
  bool may_be_partial = true;

  std::size_t all_rows() const noexcept { return length == 0 ? rows : rows * length; }
};

class __attribute__((visibility("hidden"))) ReplayBatch {  // as pybind11's types are
 public:
  // `out`: arrays for the data, or none. Throws pybind11::error_already_set.
  ReplayBatch(const std::shared_ptr<Replay>& replay, const DrawTerms& terms, const platform::Deadline& deadline,
              std::span<std::byte* const> out);

  // What is in it, as new arrays on its memory. Throw pybind11::error_already_set.
  pybind11::object data() const;  // not where it was drawn into arrays of others
  pybind11::object index() const { return number_array(0, NPY_INT64); }
  pybind11::object weight() const;
  pybind11::object probability() const;
  pybind11::object priority() const;
  pybind11::object mask() const { return number_array(kMask, NPY_BOOL); }  // of sequences: where there is a row
  // The outputs behind those of the data.
  pybind11::object extra(std::size_t number, int type) const;
  std::int64_t newest() const noexcept { return newest_; }

 private:
  static constexpr std::size_t kIndices = 0, kWeights = 1, kProbabilities = 2, kImportances = 3, kMask = 4,
                               kOutputs = 5;
  static constexpr std::size_t kMostRows = std::size_t{1} << 31;

  void plan(bool has_data);
  void take_memory();
  [[noreturn]] void refuse(std::size_t row_bytes) const;  // ValueError
  void draw(const platform::Deadline& deadline, std::span<std::byte* const> out);
  Status draw_rows(std::span<std::byte* const> places, replay::Drawer& drawer, const platform::WaitContext& wait);
  Status draw_sequences(std::span<std::byte* const> places, const platform::WaitContext& wait);
  Ref array_at(std::byte* data, PyArray_Descr* descr, std::span<const npy_intp> shape) const;
  template <class Number>
  std::span<Number> numbers(std::size_t part) const noexcept {
    return {reinterpret_cast<Number*>(data_ + at_[part]), at_[part + 1] == at_[part] ? 0 : terms_.all_rows()};
  }
  pybind11::object number_array(std::size_t part, int type) const;
  pybind11::object filled(int type, double value) const;

  const std::shared_ptr<Replay> replay_;
  const DrawTerms terms_;
  std::vector<std::size_t> at_;  // where each part begins; the last is the end
  std::shared_ptr<std::byte> memory_;
  std::byte* data_ = nullptr;
  pybind11::object lease_;
  std::int64_t newest_ = 0;
};

}  // namespace shmtree::python
