// What a buffer is: the nest of its rows, what a batch has of them, and by whom they are sampled. Written into the
// buffer when it is made, as its note, so that whoever opens it knows; docs/replay-layout.md has the bytes.
//
// Invariants: a Spec that check() or unpack() let through has leaves that are numbered as they come in the nest, each
// of some bytes; every leaf that it names is there.
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
#include "shmtree/kind.h"

namespace shmtree::replay {

// A nest of dicts, lists and tuples.
struct SpecPart {
  enum class Form : std::uint8_t { kLeaf = 0, kDict = 1, kList = 2, kTuple = 3 };
  struct Key {
    std::string bytes{};  // UTF-8; of any other key of Python's a frame that has it
    bool is_text = true;

    bool operator==(const Key&) const = default;
  };

  Form form = Form::kLeaf;
  std::size_t leaf = 0;     // of a leaf, its number
  std::vector<Key> keys{};  // of a dict, as many as parts
  std::vector<SpecPart> parts{};

  bool operator==(const SpecPart&) const = default;
};

struct SpecLeaf {
  std::string dtype{};           // as NumPy writes it: "<f4", or a structured one
  std::uint64_t item_bytes = 0;  // of an element
  std::vector<std::uint64_t> shape{};

  std::uint64_t bytes() const noexcept;
  bool operator==(const SpecLeaf&) const = default;
};

// The type of a dtype's text; kOther where C++ has none. And the text of a type; empty where NumPy has none.
DType dtype_of(std::string_view text) noexcept;
std::string_view text_of(DType dtype) noexcept;

using NamedSampler = std::pair<std::string, TableSpec>;

struct Spec {
  static constexpr std::size_t kMostDims = 28;  // batches have two more
  static constexpr std::size_t kMostDepth = 500;

  SpecPart row{};
  std::vector<SpecLeaf> leaves{};
  std::vector<NamedSampler> samplers{};
  std::vector<std::size_t> next{};  // leaves whose successors batches have; ascending
  std::uint32_t n_step = 1;
  double gamma = 0.99;
  std::vector<std::pair<std::size_t, std::uint32_t>> stack{};  // a leaf, and how many frames of it
  bool repeats_first = false;           // stacks are padded with the first frame of an episode, not with zeros
  std::optional<std::size_t> reward{};  // the leaf that is summed
  // The leaves that end episodes. `done` is the union of the others, and stands for a missing one (see ending.h).
  std::optional<std::size_t> done{}, terminated{}, truncated{};
  bool ends_unknown = false;  // rows have none of these leaves, and the user did not ask for that
  std::optional<RateLimit> limit{};
  bool raises_on_death = false;  // who waits for others is told when all of these were killed

  bool has_discount() const noexcept { return !next.empty() || n_step > 1; }
  bool has_finals() const noexcept { return !next.empty(); }
  bool says_ends() const noexcept { return done || terminated || truncated; }
  // Successors that a row needs before it can be sampled.
  std::uint64_t ahead() const noexcept { return next.empty() ? n_step - 1u : n_step; }
  std::vector<TableSpec> tables() const;
  const RateLimit* limit_or_null() const noexcept { return limit ? &*limit : nullptr; }

  // As the store has them: those of the rows, and one more, the int64 that the writer calls its version.
  std::vector<std::uint64_t> leaf_bytes() const;
  Result<Shape> shape(std::uint64_t capacity, std::uint64_t chunk, std::uint64_t streams) const;
  // The arrays of a batch: a row's leaves, the successors, then version, stream, step and, where there is one, the
  // discount.
  GatherOptions outputs() const;
  std::size_t data_outputs() const noexcept { return leaves.size() + next.size(); }
  // What a row of such an array of the data is.
  SpecLeaf output(std::size_t number) const;
};

// kInvalid, with the numbers, for what no buffer can be.
Status check(const Spec& spec);

// Returns the error of `what`, which needs episodes, if the rows of the buffer do not say where episodes end.
Error no_ends(const std::string& what);

// A Spec that was checked, as a note.
std::string pack(const Spec& spec);
// Of a note that anybody may have written: kIncompatible for what is none of this version, or says what cannot be.
Result<Spec> unpack(std::span<const std::byte> note);

}  // namespace shmtree::replay
