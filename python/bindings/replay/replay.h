// A replay buffer as an object of Python's has it: the rows, what they are made of, and what drawing needs.
//
// All calls need the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/cpython/exclusive.h"
#include "bindings/replay/batch_memory.h"
#include "bindings/replay/nest.h"
#include "replay/drawer.h"
#include "replay/gather.h"
#include "replay/store.h"
#include "replay/tables.h"

namespace shmtree::python {

// What a buffer is made with. The leaves of each row are those of its nest, and one more: the version of its writer.
struct ReplayTerms {
  std::uint64_t capacity = 0, chunk = 0, streams = 1, ahead = 0;
  bool finals = false;
  std::vector<replay::TableSpec> tables{};
  std::optional<replay::RateLimit> limit{};
  replay::GatherOptions gather{};
  std::int64_t done = -1;            // the leaf that ends episodes; -1: none does
  std::vector<std::size_t> final{};  // the leaves of an episode's last observation
};

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
  Replay(std::shared_ptr<replay::Tables> shared, ReplayNests made_of, ReplayTerms made_with, replay::Gather gathers);

  const std::shared_ptr<replay::Tables> tables;
  const std::shared_ptr<replay::Store> store;
  const ReplayNests nests;
  const ReplayTerms terms;
  const replay::Gather gather;
  std::uint64_t row_bytes = 0;
  std::uint64_t seed = 0;  // of its draws
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

// Bytes of each leaf of a row in the store.
std::vector<std::uint64_t> leaf_bytes_of(const Nest& rows);

// For the draws of one more drawer, or call.
std::uint64_t new_seed(Replay& replay) noexcept;

// A number that no other stream of this machine is likely to have.
std::uint32_t new_stream(const replay::Store& store);

// Creates the type and adds it to the module. False with a Python error set.
bool init_replay_writer(PyObject* module);

}  // namespace shmtree::python
