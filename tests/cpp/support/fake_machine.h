// Fake /proc and /sys/fs/cgroup trees.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "platform/memory_limits.h"

namespace shmtree::test {

// A folder with fake /proc and cgroup trees.
class Machine {
 public:
  Machine() {
    char name[] = "/tmp/shmtree-machine-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::string proc() const { return (root_ / "proc").string(); }
  std::string cgroup() const { return (root_ / "cgroup").string(); }
  struct Left {
    std::uint64_t bytes = UINT64_MAX;
    std::string limit{};
  };
  // The bytes that can still be committed, and the limit that bounds them.
  Left left() const {
    Left least;
    for (const platform::MemoryLimit& limit : platform::memory_limits(proc(), cgroup())) {
      if (const std::uint64_t left = platform::bytes_left(limit); left < least.bytes) least = {left, describe(limit)};
    }
    return least;
  }
  std::uint64_t available() const { return left().bytes; }

 private:
  std::filesystem::path root_;
};

}  // namespace shmtree::test
