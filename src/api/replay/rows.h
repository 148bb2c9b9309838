// Reads Values as rows of a replay buffer: finds the bytes of each leaf and checks dtype and shape.
//
// Thread safety: none for the objects that are read into.
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

// The rows from the point of view of C++: the paths of the leaves, and the pytree of last observations.
struct ReplayPaths {
  explicit ReplayPaths(const replay::Spec& spec);

  std::vector<std::string> leaves{};   // Such as "info/speed".
  std::vector<std::string> outputs{};  // Those of a batch: the leaves, and "next/obs" for successors.
  replay::SpecPart final{};
};

// Returns a checked Spec of the options; kInvalid with names and numbers.
Result<replay::Spec> spec_of(const ReplayOptions& options);
// Replaces the samplers of the spec, unless there are none. A spec without samplers gets a uniform one.
void set_samplers(replay::Spec& spec, const ReplaySampling& sampling);
replay::RateLimit limit_of(const ReplayRateLimit& limit);
// Returns kInvalid for kEach.
Status set_on_peer_death(replay::Spec& spec, OnPeerDeath or_closed);
// Returns the name of a Value's type for errors: "a list".
const char* word_of(const Value& value);
std::vector<ReplayColumn> columns_of(const replay::Spec& spec, const ReplayPaths& paths);

enum class RowForm : std::uint8_t {
  kOne,   // an array or a number for each leaf
  kMany,  // arrays with an additional first dimension
};

// One row or many. Valid while this object and the Value exist.
class ReplayRows {
 public:
  // Finds the leaves of `value`; their columns are null for those that `part` does not have. kInvalid names the leaf.
  // `part`: a pytree of leaves of `spec`. `root`: its name in errors.
  Status read(const replay::Spec& spec, const replay::SpecPart& part, const char* root, const Value& value,
              RowForm form);
  // Returns a column for each leaf, and one for replay::GivenRows.
  std::span<replay::Column> columns() noexcept { return at_; }
  std::size_t rows() const noexcept { return rows_; }

 private:
  struct alignas(16) Number {
    std::byte bytes[16];
  };
  std::vector<replay::Column> at_;
  std::vector<Number> numbers_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::size_t rows_ = 0;
};

}  // namespace shmtree::api
