// A replay buffer as an object of Python's has it: the rows, what they are made of, and what drawing needs.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/cpython/exclusive.h"
#include "bindings/replay/batch_memory.h"
#include "bindings/replay/nest.h"
#include "replay/drawer.h"
#include "replay/gather.h"
#include "replay/spec.h"

namespace shmtree::python {

struct ReplayNests {
  std::shared_ptr<Nest> rows, columns, data;   // of one row, of many, of a batch
  std::shared_ptr<Nest> final, final_columns;  // of last observations; null where there are none
};

// Drawers that are not at work, by their tables: what they know of the leaves is worth keeping.
class DrawerPool {
 public:
  explicit DrawerPool(std::size_t tables) : idle_(tables) {}
  // Null when there is none.
  std::unique_ptr<replay::Drawer> take(std::size_t table) noexcept;
  void give_back(std::size_t table, std::unique_ptr<replay::Drawer> drawer) noexcept;

 private:
  Mutex mutex_;
  std::vector<std::vector<std::unique_ptr<replay::Drawer>>> idle_;
};

struct Replay {
  Replay(std::shared_ptr<replay::Tables> shared, ReplayNests made_of, replay::Spec made_with, replay::Gather gathers);

  const std::shared_ptr<replay::Tables> tables;
  const std::shared_ptr<replay::Store> store;
  const ReplayNests nests;
  const replay::Spec spec;
  const replay::Gather gather;
  std::uint64_t row_bytes = 0;
  std::uint64_t seed = 0;           // of its draws
  std::atomic<bool> closed{false};  // nobody draws from this object any more
  std::atomic<std::uint64_t> seeds_given{0};
  DrawerPool drawers;
  const std::shared_ptr<BatchPool> pool = std::make_shared<BatchPool>();
};

// A drawer for one call.
class BorrowedDrawer {
 public:
  // Throws pybind11::error_already_set.
  BorrowedDrawer(Replay& replay, std::size_t table);
  ~BorrowedDrawer() { replay_.drawers.give_back(table_, std::move(drawer_)); }
  BorrowedDrawer(const BorrowedDrawer&) = delete;
  BorrowedDrawer& operator=(const BorrowedDrawer&) = delete;
  replay::Drawer& operator*() noexcept { return *drawer_; }
  replay::Drawer* operator->() noexcept { return drawer_.get(); }

 private:
  Replay& replay_;
  const std::size_t table_;
  std::unique_ptr<replay::Drawer> drawer_;
};

// For the draws of one more drawer, or call.
std::uint64_t new_seed(Replay& replay) noexcept;

// A number that no other stream of this machine is likely to have.
std::uint32_t new_stream(const replay::Store& store);

// Creates the type and adds it to the module. False with a Python error set.
bool init_replay_writer(PyObject* module);

}  // namespace shmtree::python
