// Wake-ups that a poll loop can see: one unix datagram socket per listener, in the abstract namespace, so that nothing
// is left in the file system. What they carry, if anything, says where to look; anyone may send one, and the listener
// only looks again.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "platform/file.h"

namespace shmtree::platform {

// A bound, non-blocking datagram socket that receives what is sent to `address`.
Result<UniqueFd> open_wake_socket(std::string_view address);

// What a wake-up may carry.
using WakeText = std::array<char, 32>;

// Sends a byte, or a text, without blocking. A full socket is readable already and an absent one needs no wake-up:
// neither is an error. False only when nobody listens there any more.
bool send_wake(std::string_view address, std::string_view text = std::string_view("\0", 1)) noexcept;

// Takes every waiting byte; the socket is not readable afterwards until the next send.
void drain_wakes(int fd) noexcept;

// Takes up to that many texts, and leaves what is no text out. False when no more are waiting.
bool receive_wakes(int fd, std::span<WakeText> out, std::size_t& received, std::size_t& texts) noexcept;
// How many wait at most at a socket that is opened now; those that come then are lost. 0: not known.
std::uint64_t most_waiting_wakes() noexcept;

// Returns when one of the descriptors can be read, after `most_ns`, or because of a signal. kOs: more descriptors than
// this process may have. May throw std::bad_alloc.
Status wait_readable(std::span<const int> descriptors, std::int64_t most_ns);

}  // namespace shmtree::platform
