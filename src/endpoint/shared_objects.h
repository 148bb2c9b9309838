// Makes shared objects, and opens them by name. The class `Object` of a shared object has
//   create(arena, options..., wait), open(arena, block, wait), arena() and block()
//   check_options(options...), which returns kInvalid if the object was created with other options
//
// Thread safety: every function may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "endpoint/names.h"

namespace shmtree::endpoint {

// A shared object, and its name; null if the object was made without one.
template <class Object>
struct Known {
  std::shared_ptr<Object> object;
  std::shared_ptr<Name> name;
};

// Request of a user of either language for a new object, without the options of its kind.
struct ObjectRequest {
  discovery::NamedKind kind = discovery::NamedKind::kChannel;
  std::optional<std::string> name{};
  std::shared_ptr<memory::Arena> arena{};  // May be null only if the object has a name, or if `make_arena` is set.
  std::optional<bool> allow_pickle{};      // By default, only objects without a name allow pickles.
  bool exist_ok = false;                   // Opens the object of that name if there is one.
  // Returns the arena of a new object. By default that is `arena`, or a new one with default options.
  std::function<Result<std::shared_ptr<memory::Arena>>()> make_arena{};

  bool allows_pickle() const noexcept { return allow_pickle.value_or(!name); }
  Result<std::shared_ptr<memory::Arena>> arena_of_new() const {
    if (make_arena) return make_arena();
    return arena != nullptr ? Result(arena) : memory::Arena::create({});
  }
  // Returns kInvalid if an object of that name is in another arena than the given one, or its options differ (`same`).
  Status check_existing(const memory::Arena& existing, Status same) const;
};

// Registers `object` under a name. Returns null without a name. Errors: those of create_name().
template <class Object>
Result<std::shared_ptr<Name>> register_object(const std::optional<std::string>& name, discovery::NamedKind kind,
                                              const Object& object) {
  if (!name) return std::shared_ptr<Name>();
  discovery::NamedObject named{.kind = kind, .arena = object.arena()};
  named.block = memory::pack(object.block());
  return create_name(*name, named);
}

// Opens the object named `name`. Errors: those of open_known() and Object::open().
template <class Object>
Result<Known<Object>> open_object(const std::string& name, discovery::NamedKind kind,
                                  std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
                                  const platform::WaitContext& wait = {}) {
  auto known = open_known(name, kind, timeout, wait.hooks);
  if (!known) return std::move(known).error();
  const discovery::NamedObject& named = (*known)->object();
  auto object = Object::open(named.arena, memory::unpack(named.block), wait);
  if (!object) return std::move(object).error();
  return Known<Object>{std::move(*object), std::move(*known)};
}

// Makes an object. Returns kInvalid for exist_ok without a name, and for an existing object with other options or in
// another arena. Returns kExists if the name is in use and `exist_ok` is false. Other errors: those of
// Object::create().
template <class Object, class... Options>
Result<Known<Object>> make_object(const ObjectRequest& request, const platform::WaitContext& wait,
                                  const Options&... options) {
  if (request.exist_ok && !request.name) return Error{Code::kInvalid, "exist_ok requires a name"};
  const auto open = [&]() -> Result<Known<Object>> {
    auto known = open_object<Object>(*request.name, request.kind, std::chrono::nanoseconds(0), wait);
    if (!known) return known;
    Status same = request.check_existing(*known->object->arena(), known->object->check_options(options...));
    if (!same) return std::move(same).error();
    return known;
  };
  const auto make = [&]() -> Result<Known<Object>> {
    auto arena = request.arena_of_new();
    if (!arena) return std::move(arena).error();
    auto object = Object::create(std::move(*arena), options..., wait);
    if (!object) return std::move(object).error();
    auto name = register_object(request.name, request.kind, **object);
    if (!name) return std::move(name).error();
    return Known<Object>{std::move(*object), std::move(*name)};
  };
  return open_or_make(request.exist_ok, open, make);
}

}  // namespace shmtree::endpoint
