// Wrappers for functions that CPython calls. No C++ exception may pass through CPython's frames. std::bad_alloc, the
// only one that our own code throws, becomes MemoryError.
#pragma once

#include <cxxabi.h>

#include <new>
#include <type_traits>

#include "bindings/cpython/gil.h"

namespace shmtree::python {

template <auto function, class = decltype(function)>
struct Guarded;
template <auto function, class Return, class... Arguments>
struct Guarded<function, Return (*)(Arguments...)> {
  static Return call(Arguments... arguments) noexcept {
    try {
      return function(arguments...);
    } catch (const std::bad_alloc&) {
      if (!PyErr_Occurred()) PyErr_NoMemory();
    } catch (const abi::__forced_unwind&) {  // see gil.h: the last place that can stop it
      block_until_exit();
    }
    if constexpr (std::is_integral_v<Return>) {
      return -1;
    } else {
      return nullptr;
    }
  }
};

// Wraps a function of any signature, for type slots.
template <auto function>
inline constexpr auto guarded = &Guarded<function>::call;

// Wraps a function for method tables.
template <auto function>
PyCFunction as_method() noexcept {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded<function>));
}

}  // namespace shmtree::python
