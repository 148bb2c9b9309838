#include "bindings/standard_classes.h"

#include <array>

namespace shmtree::python {
namespace {

struct Place {
  const char* module;
  const char* name;
};

// In the order of StandardClass.
constexpr std::array<Place, 10> kPlaces = {{
    {"collections", "defaultdict"},
    {"collections", "Counter"},
    {"collections", "deque"},
    {"decimal", "Decimal"},
    {"fractions", "Fraction"},
    {"uuid", "UUID"},
    {"pathlib", "Path"},
    {"pathlib", "PurePosixPath"},
    {"pathlib", "PureWindowsPath"},
    {"zoneinfo", "ZoneInfo"},
}};

std::array<PyObject*, kPlaces.size()> classes{};

}  // namespace

PyObject* standard_class(StandardClass which) {
  const auto index = static_cast<std::size_t>(which);
  if (!classes[index]) {
    Ref module(PyImport_ImportModule(kPlaces[index].module));
    classes[index] = module ? PyObject_GetAttrString(module.get(), kPlaces[index].name) : nullptr;
  }
  return classes[index];
}

}  // namespace shmtree::python
