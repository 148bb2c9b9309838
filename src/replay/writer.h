// One stream of rows into a replay buffer: the rows of a place are consecutive rows of one writer.
//
// Invariants: the place is this writer's while its ticket and count are as the writer left them. A writer that lost its
// place, to the window or to a fork, opens another one; no row is in two.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <span>

#include "replay/store.h"

namespace shmtree::replay {

class Writer {
 public:
  Writer(std::shared_ptr<Store> store, std::uint32_t stream) noexcept : store_(std::move(store)), stream_(stream) {}
  // Closes its place.
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // A row, by the address of each of its leaves. Its index, by which it can be read for as long as it is there. Errors
  // as of Store::open_place(); then nothing was added.
  Result<std::uint64_t> add(std::span<const void* const> leaves, const WaitContext& wait);
  // The stream ends; a next row begins another place.
  void close() noexcept;

  std::uint64_t added() const noexcept { return added_; }

 private:
  bool continues() noexcept;

  const std::shared_ptr<Store> store_;
  const std::uint32_t stream_;
  Identity owner_ = memory::kNobody;  // who opened the place: a forked child is another
  std::uint64_t ticket_ = 0;          // 0: none
  std::uint32_t rows_ = 0;            // in the place
  std::uint64_t added_ = 0;
};

}  // namespace shmtree::replay
