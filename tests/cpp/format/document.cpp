// The library writes exactly the example in docs/internals/frame.md.
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"

using namespace shmtree;
using test::Bytes;

namespace {

// {"id": 7, "x": numpy.array([1, 2], dtype="float32")}
Bytes example() {
  static const float values[] = {1, 2};
  static const std::int64_t shape[] = {2};
  format::FrameBuilder builder;
  builder.add_kind(Kind::kStrDict);
  builder.add_length(2);
  builder.add_name("id");
  builder.add_int_node(7);
  builder.add_name("x");
  test::add_array_node(builder, {.data = values, .shape = shape, .ndim = 1, .dtype = DType::kFloat32});
  return test::bytes_of(builder);
}

// Parses lines such as "0040  07 00 00 00 00 00 00 00   | the int". Returns the bytes before the bar, and checks the
// offsets.
Bytes documented(std::istream& document) {
  Bytes bytes;
  for (std::string line; std::getline(document, line);) {
    if (line.size() < 6 || !std::isxdigit(static_cast<unsigned char>(line[0])) || line.substr(4, 2) != "  ") continue;
    REQUIRE(std::stoul(line.substr(0, 4), nullptr, 16) == bytes.size());
    std::istringstream row(line.substr(6, line.find('|') - 6));
    for (std::string byte; row >> byte;) bytes.push_back(static_cast<std::byte>(std::stoul(byte, nullptr, 16)));
  }
  return bytes;
}

}  // namespace

TEST_CASE("the bytes documented are the bytes written") {
  const std::filesystem::path root = SHMTREE_SOURCE_DIR;
  std::ifstream document(root / "docs" / "internals" / "frame.md");
  REQUIRE(document.is_open());
  const Bytes bytes = documented(document);
  std::ostringstream written;
  const Bytes frame = example();
  for (std::size_t i = 0; i < frame.size(); ++i) {
    char text[8];
    std::snprintf(text, sizeof(text), i % 8 == 7 ? "%02x\n" : "%02x ", static_cast<unsigned>(frame[i]));
    written << text;
  }
  INFO(written.str());
  CHECK(bytes == frame);
  CHECK(test::walk_frame(bytes).ok());
}
