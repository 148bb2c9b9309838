// The main function, which must be compiled once for version 2 of Catch2. Version 3 has its own.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#if defined(__SANITIZE_THREAD__)
// Disabled because, in a forked child, ThreadSanitizer reports finished threads of the parent that were not joined yet.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif
