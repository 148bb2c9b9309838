// Wake-ups that a poll loop can see: one unix datagram socket per listener, in the abstract namespace, so that nothing
// is left in the file system. Bytes carry no meaning; anyone may send one, and the listener only looks again.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "platform/file.h"

namespace shmtree::platform {

// A bound, non-blocking datagram socket that receives what is sent to `address`.
Result<UniqueFd> open_wake_socket(std::string_view address);

// Sends one byte without blocking. A full socket is readable already and an absent one needs no wake-up: neither is an
// error. False only when nobody listens there any more.
bool send_wake(std::string_view address) noexcept;

// Takes every waiting byte; the socket is not readable afterwards until the next send.
void drain_wakes(int fd) noexcept;

// Returns when one of the descriptors can be read, after `most_ns`, or because of a signal. kOs: more descriptors than
// this process may have. May throw std::bad_alloc.
Status wait_readable(std::span<const int> descriptors, std::int64_t most_ns);

}  // namespace shmtree::platform
