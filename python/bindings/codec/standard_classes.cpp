#include "bindings/codec/standard_classes.h"

#include <array>
#include <atomic>
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

std::array<std::atomic<PyObject*>, kCount> classes{};

}  // namespace

PyObject* standard_class(StandardClass which) {
  const auto index = static_cast<std::size_t>(which);
  if (PyObject* known = classes[index].load(std::memory_order_acquire)) return known;
  Ref module(PyImport_ImportModule(kPlaces[index].module));
  Ref found(module ? PyObject_GetAttrString(module.get(), kPlaces[index].name) : nullptr);
  PyObject* known = nullptr;  // by another thread, meanwhile
  return !found || classes[index].compare_exchange_strong(known, found.get()) ? found.release() : known;
}

}  // namespace shmtree::python
