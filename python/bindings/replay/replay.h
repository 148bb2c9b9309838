// A replay buffer as an object of Python's has it: that of the core, and what its rows are made of for Python.
//
// All calls need the GIL.
#pragma once

#include <memory>
#include <utility>

#include "bindings/replay/nest.h"
#include "replay/buffer/batch.h"
#include "replay/buffer/buffer.h"

namespace shmtree::python {

struct ReplayNests {
  std::shared_ptr<Nest> rows, columns, data;   // of one row, of many, of a batch
  std::shared_ptr<Nest> final, final_columns;  // of last observations; null where there are none
};

struct Replay {
  Replay(std::shared_ptr<replay::Buffer> of, ReplayNests made_of) : buffer(std::move(of)), nests(std::move(made_of)) {}

  const std::shared_ptr<replay::Buffer> buffer;
  const ReplayNests nests;
  std::atomic<bool> closed{false};  // nobody draws from this object any more
  const std::shared_ptr<replay::BatchPool> pool = std::make_shared<replay::BatchPool>();
};

// Creates the type and adds it to the module. False with a Python error set.
bool init_replay_writer(PyObject* module);

}  // namespace shmtree::python
