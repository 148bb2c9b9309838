// The rows of one call with the ends of their episodes, as given by their leaves and by the caller, and their last
// observations.
//
// `done` is the union of `terminated` and `truncated`. If rows lack one of the two, `done` takes its place; if they
// lack both, `done` takes the place of `terminated`.
//
// Thread safety: any number of threads. Functions that take a Writer: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/buffer/spec.h"
#include "replay/rows/writer.h"

namespace shmtree::replay {

class Buffer;

enum class Ending : char {
  kNone,
  kDone,        // rows have only `done`: counts as terminated, unless Writer::end() says that it was cut off
  kTerminated,  // also if it was cut off at the same time
  kTruncated,
};

// Determines from the leaves of a row if its episode ends with it, and how.
class Endings {
 public:
  explicit Endings(const Spec& spec);

  // Returns the ending of one row, from the addresses of its leaves. Returns kInvalid, with the keys and their values,
  // for a row that contradicts itself.
  Result<Ending> of(std::span<const void* const> leaves) const;
  // Returns the endings of `count` rows, kNone for rows that `excluded` marks (it may be empty). The error also has the
  // number of the row.
  Result<std::vector<Ending>> of(std::span<const Writer::Column> columns, std::size_t count,
                                 std::span<const char> excluded) const;

 private:
  // A leaf that counts as true if its number is not zero.
  struct Key {
    std::size_t leaf = 0;
    std::uint64_t bytes = 0;
    bool is_float = false;
    std::string name{};  // for errors

    bool is_true(const std::byte* at) const noexcept;
  };
  struct Marked {
    bool done = false, terminated = false, truncated = false;
  };
  // `at(key)`: address of the leaf. `name()`: that of the row in errors.
  template <class At, class Name>
  Result<Ending> ending_at(const At& at, const Name& name) const;
  static std::optional<Key> key_of(const Spec& spec, const std::optional<std::size_t>& leaf, const char* name);
  std::optional<Ending> ending_of(const Marked& is) const noexcept;
  Error contradiction(const std::string& row, const Marked& is) const;

  std::optional<Key> done_, terminated_, truncated_;
};

// Converts an ending to the form that a Writer takes.
inline RowInfo info_of(Ending ending, float priority) noexcept {
  return {.done = ending != Ending::kNone,
          .truncated = ending == Ending::kTruncated,
          .terminated = ending == Ending::kTerminated,
          .priority = priority};
}

// Priorities and episode ends of the rows of a call.
struct Marks {
  std::vector<float> priorities{};                      // empty: none are given
  std::vector<char> ends{}, truncated{}, terminated{};  // as in RowInfo; empty: no row ends an episode

  bool ends_at(std::size_t row) const noexcept { return !ends.empty() && ends[row] != 0; }
  bool cuts_some_off() const noexcept;
};
// Arguments of a caller about its rows. Each has one element for each row, or is empty.
struct GivenMarks {
  std::span<const bool> ends{};
  std::span<const double> priorities{};
  std::span<const char> excluded{};  // rows that are skipped; they end nothing
};
// Returns the marks of the `count` rows of `columns`. A row ends its episode if `ends` names it or its own leaves say
// so; the leaves take precedence. If only `ends` names a row, its episode was cut off, or terminated if the buffer has
// no such leaves. Returns kInvalid for a priority that no row can have, and for rows that contradict themselves.
Result<Marks> marks_of(const Buffer& buffer, std::span<const Writer::Column> columns, std::size_t count,
                       const GivenMarks& given);

// Last observations: one for each row, or one for each row that ends its episode, in order.
class Finals {
 public:
  Finals() = default;
  // Takes the leaves of Spec::next of `count` observations, for `rows` rows. Returns kInvalid, with the numbers, if
  // `count` fits neither the rows nor their ends, or if the buffer keeps no last observations.
  static Result<Finals> of(const Spec& spec, std::vector<Writer::Column> columns, std::size_t count, std::size_t rows,
                           const Marks& marks);
  // Returns kInvalid if an episode was cut off and needs a last observation. Call it if none are given.
  static Status check_absence(const Spec& spec, const Marks& marks);

  bool empty() const noexcept { return columns_.empty(); }
  // Returns the leaf addresses of the last observation after `row`, null for leaves that it lacks. Empty if there are
  // no observations. `end` is the number of rows before `row` that end an episode.
  std::vector<const void*> leaves(const Spec& spec, std::size_t row, std::size_t end) const;

 private:
  std::vector<Writer::Column> columns_;
  bool is_by_end_ = false;
};

struct GivenRows {
  std::span<const Writer::Column> columns{};  // one for each of Spec::leaves
  std::size_t count = 0;
  Marks marks{};
  Finals finals{};
};

// Adds all rows to one stream, marked with `version`. Errors: those of Writer::extend().
Status add_rows(Writer& writer, const Spec& spec, const GivenRows& rows, std::int64_t version, std::uint64_t* indices,
                const WaitContext& wait);
// Adds a row and, if the row ends its episode, the last observation, if there is one. Errors: those of Writer::add()
// and Writer::end(). Error::completed is 1 if the row was added.
Result<std::uint64_t> add_with_final(Writer& writer, std::span<const void* const> leaves, const RowInfo& info,
                                     std::span<const void* const> final, const WaitContext& wait);
// Adds one of the rows, and ends its episode if the row does. `end` is that of Finals::leaves(). Errors: those of
// Writer::add() and Writer::end(). Error::completed is 1 if the row was added.
Result<std::uint64_t> add_row(Writer& writer, const Spec& spec, const GivenRows& rows, std::size_t row, std::size_t end,
                              std::int64_t version, const WaitContext& wait);

}  // namespace shmtree::replay
