// Values as rows of a replay buffer: where each leaf's bytes are, once they are of its dtype and shape.
//
// Thread safety: none for what is read into.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "replay/buffer/spec.h"
#include "replay/buffer/stream.h"
#include "shmtree/replay.h"

namespace shmtree::api {

// What rows are for users of C++: their leaves' paths, and the nest of an episode's last observation.
struct ReplayPaths {
  explicit ReplayPaths(const replay::Spec& spec);

  std::vector<std::string> leaves{};   // "info/speed"
  std::vector<std::string> outputs{};  // of a batch: these, and "next/obs" for successors
  replay::SpecPart final{};
};

// A Spec that was checked, of what a user says; kInvalid, with names and numbers.
Result<replay::Spec> spec_of(const ReplayOptions& options);
replay::TableSpec table_of(const ReplaySampler& sampler);
replay::RateLimit limit_of(const ReplayLimit& limit);
// kInvalid for kEach.
Status set_on_peer_death(replay::Spec& spec, OnPeerDeath told);
// What a Value is called in errors: "a list".
const char* word_of(const Value& value);
std::vector<ReplayColumn> columns_of(const replay::Spec& spec, const ReplayPaths& paths);

// Valid as long as the Value is there, and this.
class ReplayRow {
 public:
  // Leaf by leaf; null for those that the nest does not have. kInvalid names the leaf. `part`: a nest of leaves of
  // `spec`, called `root` in errors.
  Status read(const replay::Spec& spec, const replay::SpecPart& part, const char* root, const Value& value);
  std::vector<const void*>& leaves() noexcept { return at_; }

 private:
  struct alignas(16) Number {
    std::byte bytes[16];
  };
  std::vector<const void*> at_;
  std::vector<Number> numbers_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

// The same of many rows: arrays with one dimension more in front.
class ReplayRows {
 public:
  // As ReplayRow::read(); of a leaf that the nest does not have the column is null.
  Status read(const replay::Spec& spec, const replay::SpecPart& part, const char* root, const Value& value);
  const std::vector<replay::Writer::Column>& columns() const noexcept { return at_; }
  std::size_t rows() const noexcept { return rows_; }

 private:
  std::vector<replay::Writer::Column> at_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::size_t rows_ = 0;
};

}  // namespace shmtree::api
