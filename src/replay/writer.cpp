#include "replay/writer.h"

#include "platform/copy.h"

namespace shmtree::replay {

// Whether the next row was begun in the place that there is.
bool Writer::continues() noexcept {
  return ticket_ != 0 && rows_ < store_->shape().rows_per_place && owner_ == store_->arena()->current_identity() &&
         store_->begin_row(ticket_, rows_);
}

Result<std::uint64_t> Writer::add(std::span<const void* const> leaves, const WaitContext& wait) {
  const Shape& shape = store_->shape();
  if (leaves.size() != shape.leaves.size()) {
    return Error{.code = Code::kInvalid,
                 .message = "a row of " + std::to_string(leaves.size()) + " leaves, where rows have " +
                            std::to_string(shape.leaves.size())};
  }
  if (!continues()) {
    ticket_ = 0;
    auto opened = store_->open_place(stream_, added_, wait);
    if (!opened) return opened;
    ticket_ = *opened;
    rows_ = 0;
    owner_ = store_->arena()->current_identity();
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    platform::copy_racing(store_->leaf(shape.leaves[i], ticket_, rows_), leaves[i], shape.leaves[i].bytes);
  }
  store_->end_row(ticket_, rows_);
  ++added_;
  return ticket_ * shape.rows_per_place + rows_++;
}

void Writer::close() noexcept {
  const bool is_open = ticket_ != 0 && rows_ < store_->shape().rows_per_place;
  if (is_open && owner_ == store_->arena()->current_identity()) store_->close_place(ticket_, rows_);
  ticket_ = 0;
}

}  // namespace shmtree::replay
