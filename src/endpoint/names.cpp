#include "endpoint/names.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/fork.h"

namespace shmtree::endpoint {

using discovery::NamedThing;
using memory::Arena;

namespace {

bool is_same(const Name& name, const std::string& path, const Arena& arena) {
  return name.path() == path && std::memcmp(name.thing().arena->uuid(), arena.uuid(), 16) == 0;
}

// An entry's object is there while the mutex is held, since the last reference to it ends with forget().
class Names {
 public:
  // Outlives whatever is destroyed at exit.
  static Names& of_process() {
    static Names* const names = [] {
      auto made = std::make_unique<Names>();
      platform::add_fork_handlers(handlers_);
      // After those, so that no ForkSafeMutex is held.
      if (!platform::call_in_children([] {
            if (Names* known = of_process_) known->join_again();
          }))
        throw std::bad_alloc();
      return of_process_ = made.release();
    }();
    return *names;
  }

  // `name`, or what the process had of it already.
  std::shared_ptr<Name> remember(std::unique_ptr<Name> name) {
    if (auto known = find(name->path(), *name->thing().arena)) return known;
    std::shared_ptr<Name> shared(name.release(), [](Name* last) {
      last->leave();
      of_process().forget(last);
      delete last;
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
  // Let go of outside the mutex.
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
  // Every ForkSafeMutex is held. A name that another thread is letting go of is nothing that a child will have.
  template <class Visit>
  static void for_each_unlocked(Visit visit) noexcept {
    if (of_process_ == nullptr) return;
    for (const Entry& each : of_process_.load()->names_) visit(*each.raw, each.name.expired());
  }
  static inline platform::ForkHandlers handlers_{
      .prepare =
          [] {
            for_each_unlocked([](Name& name, bool leaving) {
              if (!leaving) name.before_fork();
            });
          },
      .parent = [] { for_each_unlocked([](Name& name, bool) { name.after_fork_in_parent(); }); },
      .child = [] { for_each_unlocked([](Name& name, bool) { name.after_fork_in_child(); }); },
  };
  void join_again() noexcept {
    {
      const std::lock_guard guard(mutex_);
      std::erase_if(names_, [](const Entry& each) { return each.name.expired(); });  // whose thread is not here
    }
    try {
      for (const auto& name : living()) name->join_again().ok();
    } catch (const std::bad_alloc&) {  // what opens the names has to look for us
    }
  }

  static inline std::atomic<Names*> of_process_{nullptr};  // for the handlers, which cannot wait for the making of it
  platform::ForkSafeMutex mutex_;
  std::vector<Entry> names_;
};

Result<std::shared_ptr<Name>> remembered(Result<std::unique_ptr<Name>> name) {
  if (!name) return std::move(name).error();
  return Names::of_process().remember(std::move(*name));
}

}  // namespace

Result<std::shared_ptr<Name>> create_name(const std::string& name, const NamedThing& thing) {
  return remembered(Name::create(name, thing));
}

Result<std::shared_ptr<Name>> open_name(const std::string& name) {
  return remembered(Name::open(name));
}

std::shared_ptr<Name> join_name(const std::string& path, const std::shared_ptr<Arena>& arena) {
  if (path.empty()) return nullptr;
  if (auto known = Names::of_process().find(path, *arena)) return known;
  auto joined = remembered(Name::join(path, arena));
  return joined ? std::move(*joined) : nullptr;
}

void leave_names() noexcept {
  try {
    for (const auto& name : Names::of_process().living()) name->leave();
  } catch (const std::bad_alloc&) {  // others take them for names of the dead
  }
}

}  // namespace shmtree::endpoint
