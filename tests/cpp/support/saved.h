// Saved replay buffers for tests: a folder that is deleted with the test, and the contents of a buffer, for comparison.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "replay/files/loader.h"
#include "replay/files/saver.h"
#include "support/tables.h"

namespace shmtree::test {

using replay::Loader;
using replay::SaveReport;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shmtree-saved-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string saved() const { return path_ / "saved"; }

 private:
  std::filesystem::path path_;
};

inline std::vector<std::filesystem::path> files_in(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Returns the number of each row that may be sampled, by its index.
inline std::map<std::uint64_t, std::uint64_t> rows_of(const std::shared_ptr<Store>& store) {
  std::map<std::uint64_t, std::uint64_t> rows;
  const auto window = store->window();
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    for (std::uint64_t slot = 0; slot < store->shape().rows_per_chunk; ++slot) {
      if (store->has_row(ticket, slot)) {
        rows[ticket * store->shape().rows_per_chunk + slot] = number_in(*store, Slot{ticket, slot});
      }
    }
  }
  return rows;
}

inline SaveReport save(const std::shared_ptr<Store>& store, const TemporaryFolder& folder,
                       const Tables* tables = nullptr) {
  return replay::save(*store, tables, folder.saved(), patience()).value();
}

// Returns a store of that shape with the contents of the folder.
inline Result<std::shared_ptr<Store>> loaded(const TemporaryFolder& folder, const ShapeOptions& options,
                                             const std::shared_ptr<Arena>& arena = new_arena()) {
  auto loader = Loader::open(folder.saved());
  if (!loader) return std::move(loader).error();
  const std::vector<std::uint64_t> leaves(loader->leaf_bytes().begin(), loader->leaf_bytes().end());
  auto store = Store::create(arena, replay::shape_of(leaves, options).value(), loader->note(), patience());
  if (!store) return store;
  Status done = loader->load_into(**store, nullptr, patience());
  if (!done) return std::move(done).error();
  return store;
}

}  // namespace shmtree::test
