// Wake-ups that a poll loop can see: one unix datagram socket per listener, in the abstract namespace, so that nothing
// is left in the file system. What they carry, if anything, says where to look; anyone may send one, and the listener
// only looks again.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "platform/checked_fd.h"

namespace shmtree::platform {

// A bound, non-blocking datagram socket that receives what is sent to `address`, with a number for select().
Result<CheckedFd> open_wake_socket(std::string_view address);

// Whether the owner of a wake-up socket relies on it, or also looks in slices.
enum class Wakes { kNeeded, kHelpful };
// Code::kOs with EPERM, EACCES or ENOSYS if this process may not send wake-ups, so that the socket would stay silent.
// Takes every waiting byte.
Status check_wakes(const CheckedFd& fd, std::string_view address);

// What a wake-up may carry.
using WakeText = std::array<char, 32>;

// Sends a byte, or a text, without blocking. A full socket is readable already and an absent one needs no wake-up:
// neither is an error. False only when nobody listens there any more. Where no descriptor is free for the sending
// socket the wake-up is lost, and the next one tries again.
bool send_wake(std::string_view address, std::string_view text = std::string_view("\0", 1)) noexcept;

// Takes every waiting byte; the socket is not readable afterwards until the next send. Does nothing if the program has
// closed it, as receive_wakes().
void drain_wakes(const CheckedFd& fd) noexcept;

// Takes up to that many texts, and leaves what is no text out. False when no more are waiting.
bool receive_wakes(const CheckedFd& fd, std::span<WakeText> out, std::size_t& received, std::size_t& texts) noexcept;
// How many wait at most at a socket that is opened now; those that come then are lost. 0: not known.
std::uint64_t most_waiting_wakes() noexcept;

// Returns when one of the descriptors can be read, after `most_ns`, or because of a signal. kOs: more descriptors than
// this process may have. May throw std::bad_alloc.
Status wait_readable(std::span<const int> descriptors, std::int64_t most_ns);

}  // namespace shmtree::platform
