// Lists are found as they were written, and are safe to read with any bytes.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "platform/file.h"
#include "shared_list/list_reader.h"
#include "support/catch2.h"
#include "support/lists.h"
#include "support/recordings.h"

using namespace shmtree;
using namespace shmtree::test;
using shared_list::ListReader;

namespace {

// Returns bytes that begin like a frame of that size, which is all that the reader checks.
std::string like_a_frame(std::uint64_t size, char filling) {
  std::string frame(size, filling);
  put_number(frame, 8, size | std::uint64_t{2} << 48);
  return frame;
}
std::string three() {
  return list_of({like_a_frame(16, 'a'), like_a_frame(100, 'b'), like_a_frame(64, 'c')});
}
Result<std::shared_ptr<const ListReader>> open_bytes(const std::string& bytes) {
  return ListReader::map(FileInMemory(bytes).fd(), "'three.smt'");
}
void check_refused(const std::string& bytes, Code code, const std::string& part) {
  const auto opened = open_bytes(bytes);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.code() == code);
  CHECK(opened.error().message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("the reader finds each frame") {
  const auto reader = open_bytes(three()).value();
  REQUIRE(reader->size() == 3);
  CHECK(reader->frame(0).value().size() == 16);
  CHECK(reader->frame(1).value().size() == 100);
  CHECK(reader->frame(2).value().back() == std::byte{'c'});
}

TEST_CASE("an empty list has no items") {
  CHECK(open_bytes(list_of({})).value()->size() == 0);
}

TEST_CASE("a truncated list is refused at every length") {
  const std::string bytes = three();
  for (std::size_t length = 1; length < bytes.size(); ++length) {
    CHECK(open_bytes(bytes.substr(0, length)).code() == Code::kCorrupt);
  }
}

TEST_CASE("an invalid header is refused") {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto changed = [](std::size_t at, auto value) {
    std::string bytes = three();
    put_number(bytes, at, value);
    return bytes;
  };
  check_refused(changed(0, std::uint64_t{0}), Code::kCorrupt, "'three.smt' is not a shared list");
  check_refused("SHMT", Code::kCorrupt, "it is one frame, which shmtree.load reads");
  check_refused("smt-list", Code::kCorrupt, "it has 8 bytes, and the header alone has 128");
  check_refused(changed(8, std::uint32_t{2}), Code::kIncompatible, "has version 2; this library reads version 1");
  check_refused(changed(12, std::uint32_t{64}), Code::kCorrupt, "has an invalid header");
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4}, most, most / 8}) {
    check_refused(changed(16, count), Code::kCorrupt, "has an invalid header");
  }
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{64}, most, most - 63}) {
    check_refused(changed(24, index), Code::kCorrupt, "has an invalid header");
  }
  check_refused(changed(32, most), Code::kCorrupt, "is truncated");
  check_refused(changed(32, std::uint64_t{128}), Code::kCorrupt, "has bytes after its end");
  check_refused(changed(120, std::uint64_t{1}), Code::kCorrupt, "has an invalid header");
}

TEST_CASE("an invalid offset is refused when it is used") {
  const std::string sound = three();
  const std::size_t index = sound.size() - 32;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{120}, std::uint64_t{129}, std::uint64_t{1} << 32,
                                     std::uint64_t{1} << 63, most, most - 7, std::uint64_t{sound.size()}}) {
    std::string bytes = sound;
    put_number(bytes, index + 8, offset);
    const auto reader = open_bytes(bytes).value();
    CHECK(reader->frame(1).code() == Code::kCorrupt);
    CHECK(reader->frame(2).ok());
  }
}

TEST_CASE("a frame that is larger than its place is refused") {
  std::string bytes = three();
  put_number(bytes, kListHeaderBytes + 8, std::uint64_t{1} << 40);
  const auto frame = open_bytes(bytes).value()->frame(0);
  REQUIRE(frame.code() == Code::kCorrupt);
  CHECK(frame.error().message.find("item 0") != std::string::npos);
}

TEST_CASE("a list at an offset is found between others") {
  const std::string bytes = three(), page(platform::page_size(), 'x');
  const FileInMemory file(page + bytes + std::string(2 * page.size() - bytes.size(), '\0'));
  const auto reader = ListReader::map(file.fd(), "the list", page.size()).value();
  REQUIRE(reader->size() == 3);
  CHECK(reader->bytes().size() == bytes.size());
  CHECK(reader->frame(2).value().back() == std::byte{'c'});
  for (const std::uint64_t offset : {std::uint64_t{64}, 2 * page.size(), 3 * page.size(), 1000 * page.size()}) {
    CHECK(ListReader::map(file.fd(), "the list", offset).code() == Code::kCorrupt);
  }
}

TEST_CASE("a list at an offset cannot extend beyond its file") {
  const std::string bytes = three(), page(platform::page_size(), 'x');
  const FileInMemory file(page + bytes.substr(0, bytes.size() - 1));
  CHECK(ListReader::map(file.fd(), "the list", page.size()).code() == Code::kCorrupt);
}

TEST_CASE("a list is described by its items and its path") {
  CHECK(open_bytes(three()).value()->description() == "SharedList of 3 items in 'three.smt'");
  CHECK(ListReader::map(FileInMemory(three()).fd(), "the new list").value()->description() == "SharedList of 3 items");
}
