// The main function that version 2 of Catch2 wants compiled once; version 3 brings its own.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#if defined(__SANITIZE_THREAD__)
// In a forked child, ThreadSanitizer reports threads of the parent that had finished and were not joined yet.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif
