// Headers of requests and replies in frames that any process may have written.
#include "service/wire.h"

#include <limits>
#include <string>
#include <utility>

#include "platform/clock.h"
#include "support/catch2.h"
#include "support/frames.h"

using namespace shmtree;
using format::FrameBuilder;
using test::bytes_of;

namespace {

void begin_pair(FrameBuilder& builder, std::uint64_t header_items) {
  builder.add_kind(Kind::kTuple);
  builder.add_length(2);
  builder.add_kind(Kind::kTuple);
  builder.add_length(header_items);
}

test::Bytes request(const std::string& handle, bool has_deadline) {
  FrameBuilder builder;
  begin_pair(builder, 3);
  builder.add_bytes_node(handle.data(), handle.size());
  builder.add_int_node(7);
  if (has_deadline) {
    builder.add_float_node(2.5);
  } else {
    builder.add_none_node();
  }
  builder.add_kind(static_cast<Kind>(250));  // No process can decode this value.
  return bytes_of(builder);
}

}  // namespace

TEST_CASE("the header of a request is read without its value") {
  for (const std::size_t bytes : {0u, 60u, 5000u}) {
    const std::string handle(bytes, '\xff');
    const auto header = service::request_header(request(handle, true));
    REQUIRE(header);
    CHECK((header->handle == handle && header->number == 7 && header->deadline == 2.5));
    CHECK_FALSE(service::request_header(request(handle, false))->deadline);
  }
}

TEST_CASE("the number of a reply is read without its value") {
  FrameBuilder builder;
  begin_pair(builder, 2);
  builder.add_int_node(std::numeric_limits<std::int64_t>::max());
  builder.add_bool_node(true);
  builder.add_kind(static_cast<Kind>(250));
  CHECK(service::reply_number(bytes_of(builder)) == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("other frames have no header") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  CHECK_FALSE(service::request_header(bytes_of(builder)));
  const auto frame = request("handle", true);
  CHECK_FALSE(service::reply_number(frame));
  for (std::size_t bytes = 0; bytes < frame.size(); ++bytes) {
    CHECK_FALSE(service::request_header(std::span(frame).first(bytes)));
  }
  builder.clear();
  begin_pair(builder, 2);
  builder.add_str_node("7", 1);
  builder.add_none_node();
  builder.add_none_node();
  CHECK_FALSE(service::reply_number(bytes_of(builder)));
}

TEST_CASE("a deadline in the past has expired") {
  const double now = static_cast<double>(platform::monotonic_ns()) * 1e-9;
  CHECK(service::has_expired(now - 1));
  CHECK_FALSE(service::has_expired(now + 1000));
  CHECK_FALSE(service::has_expired(std::nullopt));
}
