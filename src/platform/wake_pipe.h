// A descriptor of this process through which other processes wake its poll loop: the listener's side. wake_sender.h has
// the sender's side.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "platform/checked_fd.h"

namespace shmtree::platform {

// Address of a wake pipe: the listener's descriptor in bits 32 to 62, the lower half of the pipe's inode in bits 0 to
// 31. For a socket: kSocketNumber, and the number in the socket's name. Bit 63 is for the caller. 0: no wake pipe.
using WakeAddress = std::uint64_t;
constexpr WakeAddress kWakeAddressMask = ~std::uint64_t{0} >> 1;
constexpr std::uint32_t kSocketNumber = 0x7fffffff;

constexpr WakeAddress make_wake_address(std::uint32_t number, std::uint32_t id) noexcept {
  return std::uint64_t{number} << 32 | id;
}
constexpr std::uint32_t number_of(WakeAddress address) noexcept {
  return static_cast<std::uint32_t>((address & kWakeAddressMask) >> 32);
}
constexpr std::uint32_t id_of(WakeAddress address) noexcept {
  return static_cast<std::uint32_t>(address);
}

// A wake-up with a text, which says what to check. Writes of a text to a pipe are atomic.
using WakeText = std::array<char, 32>;

// Kind of data that senders write. A pipe for bytes has one page, so that it uses little of the user's pipe memory.
enum class WakeKind { kBytes, kTexts };

class WakePipe {
 public:
  WakePipe() noexcept = default;
  // Opens an empty pipe with a descriptor that is small enough for select(). Fails if neither a pipe nor a socket can
  // be opened.
  static Result<WakePipe> open(WakeKind kind);
  // True if this process has a wake pipe, not a socket, at that address.
  static bool is_own(WakeAddress address) noexcept;

  bool is_valid() const noexcept { return fd_.valid(); }
  // False once the program has closed the descriptor. The functions below then do nothing.
  bool is_ours() const noexcept { return fd_.is_ours(); }
  int number() const noexcept { return fd_.number(); }
  const CheckedFd& descriptor() const noexcept { return fd_; }
  WakeAddress address() const noexcept { return address_; }
  void close() noexcept { *this = {}; }

  // Makes the descriptor readable.
  void wake() const noexcept;
  // Takes all bytes: the descriptor is not readable until the next wake-up.
  void drain() const noexcept;
  // Takes up to out.size() texts. Returns false if no more are waiting. If it finds bytes that are not whole texts, it
  // drains the pipe, sets `damaged`, and `received` is 0.
  bool receive(std::span<WakeText> out, std::size_t& received, bool& damaged) const noexcept;
  // Number of texts that fit into the pipe; further ones are lost. 0: unknown.
  std::uint64_t max_waiting_texts() const noexcept;

 private:
  WakePipe(CheckedFd fd, WakeAddress address) noexcept : fd_(std::move(fd)), address_(address) {}
  static Result<WakePipe> open_pipe(WakeKind kind);
  static Result<WakePipe> open_socket();

  CheckedFd fd_;
  WakeAddress address_ = 0;
};

// Blocks until one of the descriptors is readable, `max_ns` have passed, or a signal arrives. kOs: more descriptors
// than this process may have. May throw std::bad_alloc.
Status wait_readable(std::span<const int> descriptors, std::int64_t max_ns);

}  // namespace shmtree::platform
