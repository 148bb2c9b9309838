// Keeps a name alive for objects under that name that this process has pickled and that are in transit, each with a
// transfer (memory/transfers.h).
//
// Invariant: from the start of a transfer until its receiver has added itself to the file, an entry and a part of the
// giver keep the name alive. The giver is the process that has pickled the object. That entry and that part are
// separate from those that the giver has for itself. The entry ends when the receiver clears it, when the giver takes
// back an object that it did not send, or when no process has the giver's pid any more. So the name exists until its
// last user is gone, whatever the giver does meanwhile. If a message is lost, an object in it keeps the name until
// is_needed() finds that the transfer has ended. If the giver or the receiver dies between two stores, the file
// contains either the giver's entry or no entry of this transfer.
//
// Thread safety: any thread; forget() only in fork handlers.
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
  // Records a transfer. Returns an error of the file, or kNotFound if the name belongs to another object by now. The
  // transfer then continues without its name.
  Status add(std::uint64_t transfer);
  void take_back(std::uint64_t transfer) noexcept;
  // Takes back all transfers, when the process is about to exit.
  void take_back_all() noexcept;
  // True if something may still be in transit. Forgets transfers that have ended without their receiver: their messages
  // are lost.
  bool is_needed();
  // Number of transfers that were recorded, or were about to be.
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  // Called in a forked child, which has no transfers.
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
