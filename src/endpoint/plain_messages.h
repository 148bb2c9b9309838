// Messages (endpoint/put.h) of bytes alone: they refer to no block and give nothing away.
//
// Thread safety: values. The bytes are the caller's until the message was put.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/flat.h"
#include "memory/block_table.h"
#include "platform/copy.h"
#include "shmtree/result.h"

namespace shmtree::endpoint {

class PlainMessage {
 public:
  std::span<const memory::BlockRef> blocks() const noexcept { return {}; }
  bool is_ours() const noexcept { return true; }
  void settle() const noexcept {}
};

// A frame that is there already, whole.
class WholeFrame : public PlainMessage {
 public:
  explicit WholeFrame(std::span<const std::byte> frame) noexcept : frame_(frame) {}
  std::uint64_t bytes() const noexcept { return frame_.size(); }
  void write(std::byte* out) const noexcept { platform::copy_bytes(out, frame_.data(), frame_.size()); }

 private:
  std::span<const std::byte> frame_;
};

// The flat frame (format/flat.h) of a run of bytes: without padding where it has at most `inline_bytes` then.
class FlatFrame : public PlainMessage {
 public:
  FlatFrame(std::span<const std::byte> run, std::uint64_t inline_bytes) noexcept
      : run_(run), is_short_(format::flat_short_bytes(run.size()) <= inline_bytes) {}
  bool is_too_large() const noexcept { return run_.size() > format::kMaxFrameBytes - format::kFlatBuffer; }
  std::uint64_t bytes() const noexcept {
    return is_short_ ? format::flat_short_bytes(run_.size()) : format::flat_long_bytes(run_.size());
  }
  void write(std::byte* out) const noexcept {
    if (is_short_) return format::write_flat_short(out, run_);
    format::write_flat_prefix(out, run_.size());
    platform::copy_bytes(out + format::kFlatBuffer, run_.data(), run_.size());
  }

 private:
  std::span<const std::byte> run_;
  bool is_short_;
};

// Of a FlatFrame that is.
inline Error too_large() {
  return Error{.code = Code::kMessageTooLarge, .message = "The message has more than 256 TiB."};
}

}  // namespace shmtree::endpoint
