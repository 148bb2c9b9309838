#include "endpoint/names.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/fork.h"
#include "platform/never_destroyed.h"
#include "platform/sweep_pace.h"

namespace shmtree::endpoint {

using discovery::NamedKind;
using discovery::NamedObject;
using discovery::NameInTransit;
using memory::Arena;
using platform::UniqueFd;

namespace {

bool is_same(const Name& name, const std::string& path, const Arena& arena) {
  return name.path() == path && std::memcmp(name.object().arena->uuid(), arena.uuid(), 16) == 0;
}

// The object of an entry exists while the mutex is held, since the deleter of its last reference calls forget().
class Names {
 public:
  static Names& of_process() noexcept { return platform::never_destroyed<Names>(); }

  // Returns the object that this process already has for that name and arena; otherwise registers `name`.
  std::shared_ptr<Name> remember(std::unique_ptr<Name> name) {
    if (auto existing = find(name->path(), *name->object().arena)) return existing;
    std::shared_ptr<Name> shared(name.release(), [](Name* last) {
      last->leave();
      of_process().forget(last);
      delete last;
      of_process().sweep_in_transit();
    });
    const std::lock_guard guard(mutex_);
    names_.push_back(Entry{shared.get(), shared});
    return shared;
  }
  std::shared_ptr<Name> find(const std::string& path, const Arena& arena) {
    for (auto& each : living()) {
      if (is_same(*each, path, arena)) return std::move(each);
    }
    return nullptr;
  }
  // Returns the object that keeps the name alive in transit. Registers `made` if there is none yet.
  std::shared_ptr<NameInTransit> in_transit(const Name& name, std::shared_ptr<NameInTransit> added) {
    const std::lock_guard guard(mutex_);
    const auto found = std::ranges::find_if(in_transit_, [&](const auto& each) { return each->is_of(name); });
    if (found != in_transit_.end()) return *found;
    return in_transit_.emplace_back(std::move(added));
  }
  // Drops the objects that keep no transfer any more, except `one`, and except any object to which a thread may be
  // adding a transfer. Since this reads the files of the names, it checks each time only if there are few; otherwise,
  // each time that their number has doubled.
  void sweep_in_transit(const NameInTransit* one = nullptr) noexcept {
    try {
      auto looked_at = in_transit_to_check();
      if (looked_at.empty()) return;
      for (auto& each : looked_at) {
        const std::uint64_t count = each->count();
        if (each.get() == one || each->is_needed()) continue;
        const std::lock_guard guard(mutex_);
        if (each.use_count() == 2 && each->count() == count) std::erase(in_transit_, each);
      }
      const std::lock_guard guard(mutex_);
      in_transit_pace_.note_swept(in_transit_.size());
    } catch (const std::bad_alloc&) {  // The next sweep checks them again.
    }
  }
  std::vector<std::shared_ptr<NameInTransit>> all_in_transit() {
    const std::lock_guard guard(mutex_);
    return in_transit_;
  }
  std::vector<std::shared_ptr<NameInTransit>> in_transit_to_check() {
    const std::lock_guard guard(mutex_);
    return in_transit_pace_.is_due(in_transit_.size()) ? in_transit_ : std::vector<std::shared_ptr<NameInTransit>>{};
  }
  // The caller releases the dropped objects outside the mutex.
  std::vector<std::shared_ptr<Name>> living() {
    std::vector<std::shared_ptr<Name>> found;
    const std::lock_guard guard(mutex_);
    found.reserve(names_.size());
    for (const Entry& each : names_) {
      if (auto name = each.name.lock()) found.push_back(std::move(name));
    }
    return found;
  }

 private:
  struct Entry {
    Name* raw;
    std::weak_ptr<Name> name;
  };

  void forget(const Name* name) noexcept {
    const std::lock_guard guard(mutex_);
    std::erase_if(names_, [name](const Entry& each) { return each.raw == name; });
  }
  // Called while every ForkSafeMutex is locked. A child does not inherit a name that another thread is releasing.
  template <class Visit>
  static void for_each_unlocked(Visit visit) noexcept {
    for (const Entry& each : of_process().names_) visit(*each.raw, each.name.expired());
  }
  static void forget_in_transit() noexcept {
    for (const auto& each : of_process().in_transit_) each->forget();
  }
  static void join_all_again() noexcept { of_process().join_again(); }
  static inline platform::ForkHandlers handlers_{
      .prepare =
          [] {
            for_each_unlocked([](Name& name, bool leaving) {
              if (!leaving) name.before_fork();
            });
          },
      .parent = [] { for_each_unlocked([](Name& name, bool) { name.after_fork_in_parent(); }); },
      .child =
          [] {
            for_each_unlocked([](Name& name, bool) { name.after_fork_in_child(); });
            forget_in_transit();
          },
      .last = [] { join_all_again(); },
  };
  static inline const bool added_ = (of_process(), platform::add_fork_handlers(handlers_), true);
  void join_again() noexcept {
    {
      const std::lock_guard guard(mutex_);
      // The thread that was releasing these names does not exist in this process.
      std::erase_if(names_, [](const Entry& each) { return each.name.expired(); });
      in_transit_.clear();
    }
    try {
      for (const auto& name : living()) name->join_again().ok();
    } catch (const std::bad_alloc&) {  // A process that opens the names has to search for this process.
    }
  }

  platform::ForkSafeMutex mutex_;
  std::vector<Entry> names_;
  std::vector<std::shared_ptr<NameInTransit>> in_transit_;
  platform::SweepPace in_transit_pace_{8};
};

Result<std::shared_ptr<Name>> remembered(Result<std::unique_ptr<Name>> name) {
  if (!name) return std::move(name).error();
  return Names::of_process().remember(std::move(*name));
}

}  // namespace

Result<std::shared_ptr<Name>> create_name(const std::string& name, const NamedObject& object) {
  Names::of_process().sweep_in_transit();
  return remembered(Name::create(name, object));
}

Result<std::shared_ptr<Name>> open_name(const std::string& name, std::optional<std::chrono::nanoseconds> timeout,
                                        platform::WaitHooks* hooks) {
  Names::of_process().sweep_in_transit();
  return remembered(Name::open(name, timeout, hooks));
}

Result<std::shared_ptr<Name>> open_known(const std::string& name, NamedKind kind,
                                         std::optional<std::chrono::nanoseconds> timeout, platform::WaitHooks* hooks) {
  auto known = open_name(name, timeout, hooks);
  if (!known || (*known)->object().kind == kind) return known;
  return Error{Code::kInvalid, "the name \"" + name + "\" belongs to " + in_sentence((*known)->object().kind)};
}

const char* in_sentence(NamedKind kind) noexcept {
  switch (kind) {
    case NamedKind::kArena: return "an arena";
    case NamedKind::kChannel: return "a channel";
    case NamedKind::kArray: return "an array";
    case NamedKind::kQueue: return "a queue";
    case NamedKind::kReplay: return "a replay buffer";
    case NamedKind::kLatest: return "a Latest";
    case NamedKind::kBroadcast: return "a Broadcast";
  }
  return "another kind of object";
}

std::shared_ptr<Name> join_name(const std::string& path, const std::shared_ptr<Arena>& arena, UniqueFd part) {
  if (path.empty()) return nullptr;
  if (auto existing = Names::of_process().find(path, *arena)) return existing;
  auto joined = remembered(Name::join(path, arena, std::move(part)));
  return joined ? std::move(*joined) : nullptr;
}

std::shared_ptr<NameInTransit> keep_name_for(const Name& name, std::uint64_t transfer) noexcept {
  try {
    Names& names = Names::of_process();
    auto kept = names.in_transit(name, std::make_shared<NameInTransit>(name));
    names.sweep_in_transit(kept.get());
    return kept->add(transfer) ? kept : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void leave_names() noexcept {
  try {
    for (const auto& name : Names::of_process().living()) name->leave();
    for (const auto& each : Names::of_process().all_in_transit()) each->take_back_all();
  } catch (const std::bad_alloc&) {  // Other processes treat them as names of a dead process.
  }
}

}  // namespace shmtree::endpoint
