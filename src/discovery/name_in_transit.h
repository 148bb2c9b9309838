// A name that this process keeps for things of it that are in transit, each with a transfer (memory/transfers.h).
//
// What holds: from the beginning of a transfer until its receiver has entered itself in the file, the name is kept by
// an entry and by a part of the giver's, both apart from those that the giver has for itself. The entry goes when its
// receiver clears it, when the giver takes back what it did not send, and when no process has its giver's pid any more:
// so the name goes with its last user, whatever the giver does meanwhile, and what never arrives keeps it as long as
// its giver lives. Killed between any two stores, giver and receiver leave the entry of the giver, or none.
//
// Thread safety: any thread; forget() in the fork handlers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "discovery/name_file.h"
#include "discovery/names.h"

namespace shmtree::discovery {

class NameInTransit {
 public:
  explicit NameInTransit(const Name& name);
  NameInTransit(const NameInTransit&) = delete;
  NameInTransit& operator=(const NameInTransit&) = delete;

  bool is_of(const Name& name) const noexcept;
  // Notes a transfer. An error of the file's, or kNotFound if the name belongs to another thing by now: the transfer
  // goes on without its name.
  Status add(std::uint64_t transfer);
  void take_back(std::uint64_t transfer) noexcept;
  // Takes back all: the process is about to exit.
  void take_back_all() noexcept;
  // True if something may still be in transit.
  bool is_needed() const;
  // Number of transfers that were noted, or were about to be.
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  // In a forked child, which has handed over nothing.
  void forget() noexcept { part_.reset(); }

 private:
  template <class Is>
  Status clear(Is is);

  const std::string path_;
  unsigned char uuid_[16]{};
  const std::uint64_t block_;
  const NameEntry entry_;
  std::atomic<std::uint64_t> count_{0};
  platform::CheckedFd part_{};  // under the file's lock
};

}  // namespace shmtree::discovery
