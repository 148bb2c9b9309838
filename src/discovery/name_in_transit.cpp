#include "discovery/name_in_transit.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "platform/machine.h"

namespace shmtree::discovery {

NameInTransit::NameInTransit(const Name& name)
    : path_(name.path()), block_(name.object().block), entry_{platform::process_id(), name.object().arena->fd(), 0} {
  std::memcpy(uuid_, name.object().arena->uuid(), sizeof uuid_);
}

bool NameInTransit::is_of(const Name& name) const noexcept {
  return name.path() == path_ && name.object().block == block_ &&
         std::memcmp(name.object().arena->uuid(), uuid_, sizeof uuid_) == 0;
}

Status NameInTransit::add(std::uint64_t transfer) {
  count_.fetch_add(1, std::memory_order_release);
  auto open = open_path(path_);
  if (!open) return std::move(open).error();
  if (Status same = open->check(uuid_, block_); !same) return same;
  if (!part_.valid()) {
    auto part = open->file.take_part(platform::PartKind::kForOthers);
    if (!part) return std::move(part).error();
    part_ = platform::CheckedFd(std::move(*part));
  }
  return open->add({entry_.pid, entry_.fd, transfer});
}

template <class Is>
Status NameInTransit::clear(Is is) {
  if (entry_.pid != platform::process_id()) return success();
  auto open = open_path(path_);
  if (!open) return std::move(open).error();
  if (!open->is(uuid_, block_)) return success();
  Status cleared = open->clear([&](const NameEntry& entry) { return entry.pid == entry_.pid && is(entry); });
  if (!cleared) return cleared;
  return open->remove_unless_alive();
}

void NameInTransit::take_back(std::uint64_t transfer) noexcept {
  try {
    clear([transfer](const NameEntry& entry) { return entry.transfer == transfer; }).ok();
  } catch (const std::bad_alloc&) {  // the entry stays until this process exits
  }
}

void NameInTransit::take_back_all() noexcept {
  try {
    clear([](const NameEntry& entry) { return entry.is_in_transit(); }).ok();
  } catch (const std::bad_alloc&) {  // the entry then belongs to a dead process
  }
}

// This process stays attached to the arena of its transfers.
bool NameInTransit::is_needed() {
  const auto arena = memory::Arena::find(uuid_);
  clear([&](const NameEntry& entry) {
    return entry.is_in_transit() && (arena == nullptr || arena->transfers().find(entry.transfer) == nullptr);
  }).ok();
  auto open = open_path(path_);
  if (!open) return open.code() != Code::kNotFound;
  return open->is(uuid_, block_) && std::ranges::any_of(open->record.entries, [&](const NameEntry& entry) {
           return entry.pid == entry_.pid && entry.is_in_transit();
         });
}

}  // namespace shmtree::discovery
