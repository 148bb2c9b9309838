// The Python object of a replay buffer: the core's Buffer, and the structures of its rows in Python.
//
// All calls need the GIL.
#pragma once

#include <memory>
#include <tuple>
#include <utility>

#include "bindings/replay/nest.h"
#include "replay/buffer/batch.h"
#include "replay/buffer/buffer.h"

namespace shmtree::python {

struct ReplayNests {
  std::shared_ptr<Nest> rows, data;  // structure of rows, and of a batch
  std::shared_ptr<Nest> final;       // structure of last observations; null if the buffer keeps none
};

struct Replay {
  Replay(std::shared_ptr<replay::Buffer> of, ReplayNests made_of) : buffer(std::move(of)), nests(std::move(made_of)) {}

  const std::shared_ptr<replay::Buffer> buffer;
  const ReplayNests nests;
  std::atomic<bool> closed{false};  // true: this object does not sample any more
  const std::shared_ptr<replay::BatchPool> pool = std::make_shared<replay::BatchPool>();
};

// The structures of ReplayNests, in their order.
using SharedNest = std::shared_ptr<Nest>;
using NestTerms = std::tuple<SharedNest, SharedNest, SharedNest>;

// Throws ValueError if the structures do not match the rows of the buffer.
std::shared_ptr<Replay> replay_of(std::shared_ptr<replay::Buffer> buffer, const NestTerms& nests);

// Creates the type and adds it to the module. Returns false with a Python error set.
bool init_replay_writer(PyObject* module);

}  // namespace shmtree::python
