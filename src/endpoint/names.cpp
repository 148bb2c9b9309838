#include "endpoint/names.h"

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

class Names {
 public:
  // Outlives whatever is destroyed at exit.
  static Names& of_process() {
    static Names* const names = [] {
      auto made = std::make_unique<Names>();
      // After the handlers of the arenas, of which there is one: no LeafMutex is held then.
      if (!platform::call_in_children([] { of_process().join_again(); })) throw std::bad_alloc();
      return made.release();
    }();
    return *names;
  }

  // `name`, or what the process had of it already.
  std::shared_ptr<Name> remember(std::shared_ptr<Name> name) {
    if (auto known = find(name->path(), *name->thing().arena)) return known;
    const std::lock_guard guard(mutex_);
    std::erase_if(names_, [](const std::weak_ptr<Name>& each) { return each.expired(); });
    names_.push_back(name);
    return name;
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
    for (const auto& each : names_) {
      if (auto name = each.lock()) found.push_back(std::move(name));
    }
    return found;
  }

 private:
  void join_again() noexcept {
    try {
      for (const auto& name : living()) name->join_again().ok();
    } catch (const std::bad_alloc&) {  // the names last as long as the parent then
    }
  }

  platform::LeafMutex mutex_;
  std::vector<std::weak_ptr<Name>> names_;
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
