// A folder of names that only this test process uses.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "platform/machine.h"

namespace shmtree::test {

struct OwnDirectory {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("shmtree-names-" + std::to_string(platform::process_id()));
  OwnDirectory() {
    std::filesystem::create_directories(path);
    ::setenv("SHMTREE_NAMES_DIR", (path / "shmtree").c_str(), 1);
  }
  ~OwnDirectory() {
    ::unsetenv("SHMTREE_NAMES_DIR");
    std::filesystem::remove_all(path);
  }
};

inline std::string unique_name() {
  return "discovery-test-" + std::to_string(platform::process_id());
}

}  // namespace shmtree::test
