// Makes shared objects with the arguments that users of Python give. All functions need the GIL, and throw the Python
// error for a wrong argument.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/cpython/options.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "endpoint/shared_objects.h"

namespace shmtree::python {

// Without a name, the object needs an arena. With a name and no arena, it gets an arena of its own.
inline endpoint::ObjectRequest object_request(discovery::NamedKind kind, std::optional<std::string> name,
                                              std::shared_ptr<memory::Arena> arena, pybind11::handle allow_pickle,
                                              pybind11::handle exist_ok) {
  endpoint::ObjectRequest request{.kind = kind, .name = std::move(name), .arena = std::move(arena)};
  if (!allow_pickle.is_none()) check(parse_flag(allow_pickle.ptr(), &request.allow_pickle.emplace()));
  check(parse_flag(exist_ok.ptr(), &request.exist_ok));
  return request;
}

// Makes a Ring or a Store. Returns the arguments of the method _attach() of its Python object.
template <class Object, class Options>
pybind11::tuple make_published(const endpoint::ObjectRequest& request, const Options& options) {
  note_process_name();
  auto made = unwrap(with_hooks(true, [&](platform::WaitHooks& hooks) {
    return endpoint::make_object<Object>(request, {platform::Deadline::never(), &hooks}, options);
  }));
  return pybind11::make_tuple(std::move(made.object), request.allows_pickle(), std::move(made.name));
}

}  // namespace shmtree::python
