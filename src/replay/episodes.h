// Many rows of a caller's, with the last observations of the episodes that end among them.
//
// Thread safety: that of a Writer.
#pragma once

#include <span>
#include <vector>

#include "replay/spec.h"
#include "replay/stream.h"
#include "replay/writer.h"

namespace shmtree::replay {

// Last observations, of each row or of each row that ends its episode: in this order.
class Finals {
 public:
  Finals() = default;
  // The leaves of Spec::next, of `count` observations, for so many rows. kInvalid, with the numbers, for another count,
  // and for a buffer that keeps none.
  static Result<Finals> of(const Spec& spec, std::vector<Writer::Column> columns, std::size_t count, std::size_t rows,
                           const Marks& marks);
  // kInvalid where there are none, and an episode that was cut off needs one.
  static Status check_absence(const Spec& spec, const Marks& marks);

  bool empty() const noexcept { return columns_.empty(); }
  // The leaves of a row that holds one, with a null for those that none has; no leaves without any. `end`: how many
  // rows before it end an episode.
  std::vector<const void*> leaves(const Spec& spec, std::size_t row, std::size_t end) const;

 private:
  std::vector<Writer::Column> columns_;
  bool is_by_end_ = false;
};

struct GivenRows {
  std::span<const Writer::Column> columns{};  // of Spec::leaves
  std::size_t count = 0;
  Marks marks{};
  Finals finals{};
};

// Adds all of them to one stream. `version`: what its rows are marked with. Errors as of Writer::extend().
Status add_rows(Writer& writer, const Spec& spec, const GivenRows& rows, std::int64_t version, std::uint64_t* indices,
                const WaitContext& wait);
// Adds a row and, if the row ends its episode, the last observation, if there is one. Errors as of Writer::add() and
// Writer::end(). Error::completed is 1 if the row was added.
Result<std::uint64_t> add_with_final(Writer& writer, std::span<const void* const> leaves, const RowInfo& info,
                                     std::span<const void* const> final, const WaitContext& wait);
// Adds one of them, and ends its episode where it is to. `end` as above. Errors as of Writer::add() and Writer::end():
// Error::completed is 1 when the row was added.
Result<std::uint64_t> add_row(Writer& writer, const Spec& spec, const GivenRows& rows, std::size_t row, std::size_t end,
                              std::int64_t version, const WaitContext& wait);

}  // namespace shmtree::replay
