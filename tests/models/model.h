// Shared by all models: threads, assertions, and replacements of the few system functions that the code under test
// calls. The checker (GenMC) interprets the LLVM code of a model, once for each order in which stores of the threads
// can become visible. It implements the functions __VERIFIER_*.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "memory/event.h"
#include "memory/participants.h"
#include "platform/atomics.h"

extern "C" {
char __libc_single_threaded = 1;  // each thread stands for a process

int __VERIFIER_thread_create(const void* attributes, void* (*start)(void*), void* argument) noexcept;
void* __VERIFIER_thread_join(long thread) noexcept;
void __VERIFIER_assume(bool holds) noexcept;
void __VERIFIER_assert_fail(const char* text, const char* file, int line) noexcept;
}

// If the condition is false, ends the search with a violation.
#define MODEL_ASSERT(condition)                                               \
  do {                                                                        \
    if (!(condition)) __VERIFIER_assert_fail(#condition, __FILE__, __LINE__); \
  } while (false)

// Replace memcpy and memset (tools/models.py). The checker requires that memory is read in the sizes in which it was
// written: here 8 bytes, and 4 or 1 at the end.
extern "C" void model_copy(void* out, const void* in, std::size_t bytes, bool) {
  std::size_t i = 0;
  for (; i < bytes / 8; ++i) static_cast<std::uint64_t*>(out)[i] = static_cast<const std::uint64_t*>(in)[i];
  if (bytes % 8 == 4) static_cast<std::uint32_t*>(out)[2 * i] = static_cast<const std::uint32_t*>(in)[2 * i];
  if (bytes == 1) *static_cast<char*>(out) = *static_cast<const char*>(in);
}
extern "C" void model_clear(void* out, char, std::size_t bytes, bool) {
  for (std::size_t i = 0; i < bytes / 8; ++i) static_cast<std::uint64_t*>(out)[i] = 0;
}

// Errors have only codes here, no messages.
namespace shmtree::detail {
const char library_compiled_without_GLIBCXX_DEBUG = 0;
ErrorPointer::ErrorPointer(Error error) noexcept : ErrorPointer(error.code) {}
Error ErrorPointer::take() noexcept {
  return Error{.code = code()};
}
void ErrorPointer::destroy() noexcept {}
}  // namespace shmtree::detail

namespace shmtree::platform {
inline constinit std::atomic<std::uint64_t> stamp{1};
constinit std::atomic<std::uint64_t>* g_process_stamp = &stamp;
}  // namespace shmtree::platform

namespace model {

// Makes the checker ignore executions in which `holds` is false.
inline void assume(bool holds) {
  __VERIFIER_assume(holds);
}

template <void run()>
void* start(void*) {
  run();
  return nullptr;
}

// Runs each function in a thread, and returns when all have ended.
template <void... run()>
void in_threads() {
  const long threads[] = {__VERIFIER_thread_create(nullptr, start<run>, nullptr)...};
  for (const long thread : threads) __VERIFIER_thread_join(thread);
}

}  // namespace model
