// The Python object of a sampled batch: the core's Batch, and arrays that are views of its memory.
//
// All calls need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <span>

#include "bindings/replay/replay.h"
#include "replay/buffer/batch.h"

namespace shmtree::python {

class __attribute__((visibility("hidden"))) ReplayBatch {  // like the types of pybind11
 public:
  // `out`: arrays that receive the data, or none. Throws pybind11::error_already_set.
  ReplayBatch(const std::shared_ptr<Replay>& replay, const replay::SampleTerms& terms,
              const platform::Deadline& deadline, std::span<std::byte* const> out);

  // Return the parts of the batch as new arrays on its memory. Throw pybind11::error_already_set.
  pybind11::object data() const;  // not if the data was written to arrays of the caller
  pybind11::object index() const { return number_array(batch_.indices().data(), NPY_INT64); }
  pybind11::object weight() const;
  pybind11::object probability() const;
  pybind11::object priority() const;
  pybind11::object mask() const { return number_array(batch_.mask().data(), NPY_BOOL); }  // for sequences
  pybind11::object goals() const;                                                         // None without hindsight
  // See replay::Batch::set_rewards(). Takes arrays of float64, and of bool or None.
  void set_rewards(pybind11::handle rewards, pybind11::handle terminated) const;
  // Returns an output that follows those of the data.
  pybind11::object extra(std::size_t number, int type) const;
  std::int64_t newest() const noexcept { return batch_.newest(); }

 private:
  Ref array_at(void* data, PyArray_Descr* descr, std::span<const npy_intp> shape) const;
  pybind11::object number_array(void* data, int type) const;
  pybind11::object filled(int type, double value) const;

  const std::shared_ptr<Replay> replay_;
  replay::Batch batch_;
  pybind11::object owner_;
};

// Adds _core.ReplayBatch.
void bind_replay_batch(pybind11::module_& module);

}  // namespace shmtree::python
