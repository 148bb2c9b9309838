// The headers of requests and replies. Both languages write them as plain tuples, in front of the value:
//
//   request  ((handle, number, deadline), value)   handle: bytes of the client's reply channel (discovery/handle.h)
//                                                  deadline: seconds of the monotonic clock as a float, or None
//   reply    ((number, outcome), value)            outcome: True, value is the result
//                                                  False, value is (class, text) of the server's error
//                                                  None, the same, and the server dropped the request
//                                                  "part", value is one of several results, and others follow
//                                                  "end", no other result follows
//
// The functions read only the header, so they also work if the value cannot be decoded.
//
// Thread safety: every function may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace shmtree::service {

struct RequestHeader {
  std::string handle;
  std::int64_t number = 0;
  std::optional<double> deadline{};
};

// Returns the header of a frame, or nullopt if the frame is not a request, or not a reply. May throw std::bad_alloc.
std::optional<RequestHeader> request_header(std::span<const std::byte> frame);
std::optional<std::int64_t> reply_number(std::span<const std::byte> frame);

// Returns true if the deadline of a request has passed.
bool has_expired(const std::optional<double>& deadline) noexcept;

}  // namespace shmtree::service
