// Specification of a buffer: the pytree of its rows, the arrays of its batches, and its samplers. The creator stores it
// in the buffer as its note, for the processes that open the buffer. docs/internals/replay-layout.md describes the
// bytes.
//
// Invariants of a Spec that check() or unpack() accepted: leaves are numbered in the order of the pytree, and none is
// empty. Every leaf that the Spec refers to exists.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/rows/gather.h"
#include "replay/sampling/tables.h"
#include "shmtree/base/kind.h"

namespace shmtree::replay {

// A node of the pytree: a leaf, dict, list or tuple.
struct SpecPart {
  enum class Form : std::uint8_t { kLeaf = 0, kDict = 1, kList = 2, kTuple = 3 };
  struct Key {
    std::string bytes{};  // UTF-8 text, or a frame that has any other Python key
    bool is_text = true;

    bool operator==(const Key&) const = default;
  };

  Form form = Form::kLeaf;
  std::size_t leaf = 0;     // number of the leaf, if it is one
  std::vector<Key> keys{};  // one for each part, if it is a dict
  std::vector<SpecPart> parts{};

  bool operator==(const SpecPart&) const = default;
};

struct SpecLeaf {
  std::string dtype{};           // in NumPy's notation: "<f4", or a structured one
  std::uint64_t item_bytes = 0;  // bytes of an element
  std::vector<std::uint64_t> shape{};

  std::uint64_t bytes() const noexcept;
  bool operator==(const SpecLeaf&) const = default;
};

// Convert between the text of a dtype and its type. The type is kOther if C++ has none; the text is empty if NumPy has
// none.
DType dtype_of(std::string_view text) noexcept;
std::string_view text_of(DType dtype) noexcept;

using NamedSampler = std::pair<std::string, TableSpec>;

struct Spec {
  static constexpr std::size_t kMaxLeafDims = 28;  // batches have two more
  static constexpr std::size_t kMaxNesting = 500;

  SpecPart row{};
  std::vector<SpecLeaf> leaves{};
  std::vector<NamedSampler> samplers{};
  std::vector<std::size_t> next{};  // leaves with successors in batches; ascending
  std::uint32_t n_step = 1;
  double gamma = 0.99;
  std::vector<std::pair<std::size_t, std::uint32_t>> stack{};  // a leaf, and the number of its frames
  bool repeats_first = false;           // stacks are padded with the first frame of an episode, not with zeros
  std::optional<std::size_t> reward{};  // leaf that is summed
  // Leaves that end episodes. `done` is the union of the others, and takes the place of a missing one (see Endings).
  std::optional<std::size_t> done{}, terminated{}, truncated{};
  bool ends_unknown = false;  // rows have none of these leaves, and the user did not choose that
  std::optional<RateLimit> limit{};
  bool raises_on_death = false;  // blocked calls fail when all of their peers were killed

  bool has_discount() const noexcept { return !next.empty() || n_step > 1; }
  bool has_finals() const noexcept { return !next.empty(); }
  bool says_ends() const noexcept { return done || terminated || truncated; }
  // Successors that a row needs before it can be sampled.
  std::uint64_t ahead() const noexcept { return next.empty() ? n_step - 1u : n_step; }
  std::vector<TableSpec> tables() const;
  // Returns the path of each leaf, such as "obs/image". A part without a text as its key has its number.
  std::vector<std::string> paths() const;
  const RateLimit* limit_or_null() const noexcept { return limit ? &*limit : nullptr; }

  // Returns the leaf sizes of the store: those of the rows, and 8 bytes for the version that the writer sets.
  std::vector<std::uint64_t> leaf_bytes() const;
  Result<Shape> shape(std::uint64_t capacity, std::uint64_t chunk, std::uint64_t streams) const;
  // Returns the arrays of a batch: the row's leaves, the successors, then version, stream, step and, if has_discount(),
  // the discount.
  GatherOptions outputs() const;
  std::size_t data_outputs() const noexcept { return leaves.size() + next.size(); }
  // Returns dtype and shape of one row of a data output.
  SpecLeaf output(std::size_t number) const;
};

// Options for episodes as a user gives them: with keys of a row, or paths such as "obs/image", in place of leaves.
struct EpisodeKeys {
  using Key = SpecPart::Key;

  std::vector<Key> next{};  // keys only
  std::vector<std::pair<Key, std::uint32_t>> stack{};
  std::optional<Key> reward{}, done{};
};

// Sets the leaves below these keys: Spec::next and so on. Rows need not have the default keys "reward" and "done". With
// `done`, the keys "terminated" and "truncated" end episodes, too. Returns kInvalid, with the key, if rows lack it, or
// if it has several leaves and needs one.
Status set_leaves(Spec& spec, const EpisodeKeys& keys);

// Returns the leaf at a key or path that `what` names. Returns kInvalid if there is none, or several.
Result<std::size_t> leaf_at(const Spec& spec, const char* what, const SpecPart::Key& key);

// Returns kInvalid, with the numbers, if no buffer can have this specification.
Status check(const Spec& spec);

// Returns the error of `what`, which needs episodes, if the rows of the buffer do not say where episodes end.
Error no_ends(const std::string& what);

// Converts a Spec that was checked to a note.
std::string pack(Spec spec);
// Reads an untrusted note. Returns kIncompatible if it has an unknown version or contradicts itself.
Result<Spec> unpack(std::span<const std::byte> note);

}  // namespace shmtree::replay
