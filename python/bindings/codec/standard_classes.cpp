#include "bindings/codec/standard_classes.h"

#include <array>
#include <cstddef>
#include <iterator>

namespace shmtree::python {
namespace {

struct Place {
  const char* module;
  const char* name;
};

// In the order of StandardClass.
constexpr Place kPlaces[] = {
    {"collections", "defaultdict"}, {"collections", "Counter"}, {"collections", "deque"}, {"decimal", "Decimal"},
    {"fractions", "Fraction"},      {"uuid", "UUID"},           {"pathlib", "Path"},      {"pathlib", "PurePosixPath"},
    {"pathlib", "PureWindowsPath"}, {"zoneinfo", "ZoneInfo"},
};
constexpr auto kCount = static_cast<std::size_t>(StandardClass::kCount);
static_assert(std::size(kPlaces) == kCount);

std::array<PyObject*, kCount> classes{};

}  // namespace

bool init_standard_classes() {
  for (std::size_t i = 0; i < kCount; ++i) {
    const Ref module(PyImport_ImportModule(kPlaces[i].module));
    classes[i] = module ? PyObject_GetAttrString(module.get(), kPlaces[i].name) : nullptr;
    if (!classes[i]) return false;
  }
  return true;
}

PyObject* standard_class(StandardClass which) noexcept {
  return classes[static_cast<std::size_t>(which)];
}

}  // namespace shmtree::python
