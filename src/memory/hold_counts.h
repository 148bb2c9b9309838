// The leases that one process has of each block. Only add() allocates. Thread safety: none.
#pragma once

#include "memory/layout.h"
#include "platform/flat_table.h"
#include "platform/hash.h"

namespace shmtree::memory {

class HoldCounts {
 public:
  struct Hold {
    std::uint64_t id = 0;
    std::uint32_t generation = 0;
    std::uint32_t leases = 0;
    std::uint32_t in_flight = 0;  // begun by a receiving thread, not a lease yet
    std::uint32_t unused = 0;

    bool is_free() const noexcept { return id == 0; }
  };

  Hold* find(BlockId id) noexcept { return table_.find(hash(id.value), HasId{id.value}); }
  // Returns the block's entry, which it adds if there is none. Null if there is no memory for it.
  Hold* add(BlockId id) noexcept {
    if (!table_.make_space(hash_of)) return nullptr;
    Hold& hold = table_.place(hash(id.value), HasId{id.value});
    if (hold.is_free()) table_.insert(hold, Hold{id.value});
    return &hold;
  }
  void erase(Hold* hold) noexcept { table_.erase(hold, hash_of); }
  void clear() noexcept { table_.clear(); }

  template <class Visit>
  void for_each(Visit visit) {
    table_.for_each(visit);
  }

 private:
  struct HasId {
    std::uint64_t id;
    bool operator()(const Hold& hold) const noexcept { return hold.id == id; }
  };
  static std::uint64_t hash(std::uint64_t id) noexcept { return platform::mixed(id) >> 32; }
  static std::uint64_t hash_of(const Hold& hold) noexcept { return hash(hold.id); }

  platform::FlatTable<Hold> table_;
};

}  // namespace shmtree::memory
