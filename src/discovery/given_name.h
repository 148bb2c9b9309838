// A name that this process keeps for what it has given to others: things on their way there, each known by a grant.
//
// What holds: from the giving of something until its receiver has entered itself in the file, the name is kept by an
// entry and by a part of the giver's, both apart from those that the giver has for itself. The entry goes when its
// receiver clears it, when the giver takes back what it did not send, and when nobody is its giver's pid any more: so
// the name goes with its last user, whatever the giver does meanwhile, and what never arrives keeps it as long as its
// giver lives. Killed between any two stores, giver and receiver leave the entry of the giver, or none.
//
// Thread safety: any thread; forget() in the fork handlers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "discovery/name_file.h"
#include "discovery/names.h"

namespace shmtree::discovery {

class GivenName {
 public:
  explicit GivenName(const Name& name);
  GivenName(const GivenName&) = delete;
  GivenName& operator=(const GivenName&) = delete;

  bool is_of(const Name& name) const noexcept;
  // Something known by that grant is on its way. An error of the file's, or kNotFound when the name is somebody else's
  // by now: then it goes without its name.
  Status give(std::uint64_t grant);
  void take_back(std::uint64_t grant) noexcept;
  // All that is still on its way: the process is about to exit.
  void take_back_all() noexcept;
  // Whether something may be on its way still.
  bool is_needed() const;
  // How often something was given, or was about to be.
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  // In a forked child, which has given nothing.
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
