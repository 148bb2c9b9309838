// Messages (endpoint/put.h) that refer to no block and give nothing away: a finished frame, or a run of bytes.
//
// Thread safety: values. The caller keeps the bytes alive and unchanged until the put returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "format/flat.h"
#include "memory/mapping.h"
#include "platform/copy.h"
#include "shmtree/base/result.h"

namespace shmtree::endpoint {

class PlainMessage {
 public:
  std::span<const memory::BlockRef> blocks() const noexcept { return {}; }
  bool is_ours() const noexcept { return true; }
  void settle() const noexcept {}
};

// A finished frame.
class WholeFrame : public PlainMessage {
 public:
  explicit WholeFrame(std::span<const std::byte> frame) noexcept : frame_(frame) {}
  std::uint64_t bytes() const noexcept { return frame_.size(); }
  void write(std::byte* out) const noexcept { platform::copy_bytes(out, frame_.data(), frame_.size()); }

 private:
  std::span<const std::byte> frame_;
};

// The flat frame (format/flat.h) of a run of bytes. Takes the short form, without padding, if that has at most
// `inline_bytes`.
class FlatFrame : public PlainMessage {
 public:
  // kMessageTooLarge for a run that no frame can hold.
  static Result<FlatFrame> make(std::span<const std::byte> run, std::uint64_t inline_bytes) {
    if (run.size() <= format::kMaxFlatBytes) return FlatFrame(run, inline_bytes);
    return Error{.code = Code::kMessageTooLarge,
                 .message = "a message of " + std::to_string(run.size()) + " bytes is over the limit of 256 TiB"};
  }
  std::uint64_t bytes() const noexcept {
    return is_short_ ? format::flat_short_bytes(run_.size()) : format::flat_long_bytes(run_.size());
  }
  void write(std::byte* out) const noexcept {
    if (is_short_) return format::write_flat_short(out, run_);
    format::write_flat_prefix(out, run_.size());
    platform::copy_bytes(out + format::kFlatBuffer, run_.data(), run_.size());
  }

 private:
  FlatFrame(std::span<const std::byte> run, std::uint64_t inline_bytes) noexcept
      : run_(run), is_short_(format::flat_short_bytes(run.size()) <= inline_bytes) {}

  std::span<const std::byte> run_;
  bool is_short_;
};

}  // namespace shmtree::endpoint
