// Adapts a Value to the messages of endpoint/put.h.
#pragma once

#include <utility>
#include <vector>

#include "api/lent_arrays.h"
#include "api/state.h"
#include "endpoint/put.h"
#include "value/codec.h"

namespace shmtree::api {

class Message {
 public:
  template <class... Arguments>
  explicit Message(format::FrameBuilder& builder, Arguments&&... arguments)
      : builder_(builder), arrays_(std::forward<Arguments>(arguments)...) {}
  Status encode(const Value& value) { return value::encode(value, builder_, arrays_); }
  std::uint64_t bytes() const noexcept { return builder_.total_bytes(); }
  void write(std::byte* out) const noexcept { builder_.write(out); }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return arrays_.blocks(); }
  bool is_ours() const noexcept { return arrays_.are_ours(); }
  void settle() noexcept { arrays_.settle(); }

 private:
  format::FrameBuilder& builder_;
  LentArrays arrays_;
};

}  // namespace shmtree::api
