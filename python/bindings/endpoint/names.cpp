// Names of arenas and of the objects in them.
#include "endpoint/names.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using discovery::NamedKind;
using discovery::NamedObject;
using endpoint::Name;
using memory::Arena;

namespace {

// Programs in other languages may use names that are not valid UTF-8. Python decodes file names in the same way.
py::object text(const std::string& name) {
  return own(PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
}

std::shared_ptr<Name> create_name(const std::string& name, int kind, std::shared_ptr<Arena> arena, std::uint64_t block,
                                  std::string note) {
  const NamedObject object{static_cast<NamedKind>(kind), std::move(arena), block, std::move(note)};
  return unwrap(without_gil([&] { return endpoint::create_name(name, object); }));
}

// `timeout` is in seconds; None blocks indefinitely. `kind` is that of the object; None accepts every kind.
std::shared_ptr<Name> open_name(const std::string& name, py::handle timeout, std::optional<int> kind) {
  std::optional<std::chrono::nanoseconds> wait;
  if (!parse_timeout(timeout.ptr(), &wait)) throw py::error_already_set();
  return unwrap(with_hooks(true, [&](platform::WaitHooks& hooks) {
    return kind ? endpoint::open_known(name, static_cast<NamedKind>(*kind), wait, &hooks)
                : endpoint::open_name(name, wait, &hooks);
  }));
}

}  // namespace

void bind_names(py::module_& module) {
  py::class_<Name, std::shared_ptr<Name>>(module, "Name", plain_class())
      .def_static("create", &create_name, "name"_a, "kind"_a, "arena"_a, "block"_a, "note"_a)
      .def_static("open", &open_name, "name"_a, "timeout"_a, "kind"_a = py::none())
      .def_static(
          "join",
          [](const std::string& path, const std::shared_ptr<Arena>& arena, int part) {
            platform::UniqueFd owned(part);
            if (owned.valid()) platform::set_close_on_exec(owned.get());
            return without_gil([&] { return endpoint::join_name(path, arena, std::move(owned)); });
          },
          "path"_a, "arena"_a, "part"_a = -1)
      .def("part_for_child", [](const Name& name) { return unwrap(name.part_for_child()).release(); })
      .def_property_readonly("path", &Name::path)
      .def_property_readonly("kind", [](const Name& name) { return static_cast<int>(name.object().kind); })
      .def_property_readonly("kind_in_sentence",
                             [](const Name& name) { return endpoint::in_sentence(name.object().kind); })
      .def_property_readonly("arena", [](const Name& name) { return name.object().arena; })
      .def_property_readonly("block", [](const Name& name) { return name.object().block; })
      .def_property_readonly("note", [](const Name& name) { return py::bytes(name.object().note); });
  module.def(
      "give_up_part",
      [](const std::string& path, int part) {
        platform::UniqueFd owned(part);
        without_gil([&] { Name::give_up_part(path, std::move(owned)); });
      },
      "path"_a, "part"_a);
  module.def("leave_names", [] { without_gil([] { endpoint::leave_names(); }); });
  module.def("list_names", [] {
    py::list out;
    for (const discovery::NameInfo& info : unwrap(without_gil([] { return discovery::list_names(); }))) {
      out.append(py::make_tuple(text(info.name), text(info.path), static_cast<int>(info.kind), info.pids));
    }
    return out;
  });
  module.def("look_at_names", [] {
    py::list out;
    for (const discovery::SeenName& seen : unwrap(without_gil([] { return discovery::list_records(); }))) {
      const py::bytes uuid(reinterpret_cast<const char*>(seen.uuid), sizeof seen.uuid);
      out.append(py::make_tuple(text(seen.name), static_cast<int>(seen.kind), uuid, seen.block, seen.has_parts));
    }
    return out;
  });
  module.def("clean_names", [] {
    py::list out;
    for (const std::string& name : unwrap(without_gil([] { return discovery::clean_names(); }))) out.append(text(name));
    return out;
  });
}

}  // namespace shmtree::python
