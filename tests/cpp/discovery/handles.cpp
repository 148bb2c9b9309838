#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "discovery/handle.h"
#include "discovery/name_file.h"
#include "discovery/name_in_transit.h"
#include "discovery/names.h"
#include "memory/transfers.h"
#include "platform/machine.h"
#include "platform/private_directory.h"
#include "support/catch2.h"
#include "support/own_names.h"
#include "support/process.h"
#include "support/versions.h"

using namespace shmtree;
using discovery::Handle;
using discovery::Name;
using discovery::NamedKind;
using memory::Arena;
using test::OwnDirectory;
using test::unique_name;

namespace {

std::shared_ptr<Arena> new_arena() {
  return Arena::create({.max_bytes = 8 << 20}).value();
}

}  // namespace

TEST_CASE("a handle survives encode and decode") {
  const auto arena = new_arena();
  Handle handle = discovery::handle_of(*arena);
  handle.block = 0x1234567890abcdef;
  handle.transfer = 77;
  handle.name = "/run/user/0/shmtree/replay";
  const std::string bytes = discovery::encode(handle);
  const Handle again = discovery::decode(std::as_bytes(std::span(bytes.data(), bytes.size()))).value();
  CHECK(std::equal(std::begin(again.uuid), std::end(again.uuid), arena->uuid()));
  CHECK(again.pid == handle.pid);
  CHECK(again.fd == arena->fd());
  CHECK(again.block == handle.block);
  CHECK(again.transfer == 77);
  CHECK(again.name == handle.name);
}

TEST_CASE("decode refuses handles of a wrong length or prefix") {
  const auto arena = new_arena();
  const std::string bytes = discovery::encode(discovery::handle_of(*arena));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(discovery::decode(std::as_bytes(std::span(bytes.data(), length))).code() == Code::kInvalid);
  }
  std::string longer = bytes + "x", other = bytes;
  other[0] = 'x';
  for (const std::string& wrong : {longer, other}) {
    CHECK(discovery::decode(std::as_bytes(std::span(wrong.data(), wrong.size()))).code() == Code::kInvalid);
  }
}

TEST_CASE("decode names both versions of a handle") {
  std::string bytes = discovery::encode(discovery::handle_of(*new_arena()));
  REQUIRE(bytes.starts_with("smthand1"));
  bytes[7] = '7';
  CHECK(test::names_versions(discovery::decode(std::as_bytes(std::span(bytes.data(), bytes.size()))).error(), 7, 1));
  bytes[7] = 'x';
  CHECK(discovery::decode(std::as_bytes(std::span(bytes.data(), bytes.size()))).code() == Code::kInvalid);
}

TEST_CASE("a handle to a closed arena reports a version mismatch") {
  Handle handle;
  std::shared_ptr<Arena> arena = new_arena();
  handle = discovery::handle_of(*arena);
  handle.pid = 1 << 30;  // no process has this pid
  platform::UniqueFd file(::fcntl(arena->fd(), F_DUPFD_CLOEXEC, 3));
  const std::uint32_t version = 77;
  REQUIRE(::pwrite(file.get(), &version, sizeof version, offsetof(memory::ArenaHeader, version)) == sizeof version);
  arena.reset();
  CHECK(test::names_versions(discovery::open_arena(handle).error(), 77, memory::kVersion));
}

TEST_CASE("open and create name both versions of a name's file") {
  const OwnDirectory own;
  const auto arena = new_arena();
  const auto made = Name::create(unique_name(), {NamedKind::kArena, arena, 0, ""}).value();
  std::fstream(made->path(), std::ios::in | std::ios::out | std::ios::binary).seekp(7).put('7');
  CHECK(test::names_versions(Name::open(unique_name()).error(), 7, 2));
  CHECK(test::names_versions(Name::create(unique_name(), {NamedKind::kArena, arena, 0, ""}).error(), 7, 2));
}

TEST_CASE("open_arena returns an arena that is already open") {
  const auto arena = new_arena();
  CHECK(discovery::open_arena(discovery::handle_of(*arena)).value() == arena);
}

TEST_CASE("a handle to a closed arena is not found") {
  Handle handle = discovery::handle_of(*new_arena());
  CHECK(discovery::open_arena(handle).code() == Code::kNotFound);
}

TEST_CASE("move_byte_lock keeps a lock held until its new owner closes") {
  auto file = platform::create_memory_file("lock", 4096).value();
  auto first = platform::reopen(file.get()).value(), second = platform::reopen(file.get()).value();
  REQUIRE(platform::try_lock_byte(first.get(), 7).value());
  REQUIRE(platform::move_byte_lock(first.get(), second.get(), 7).ok());
  CHECK(platform::byte_is_locked(file.get(), 7));
  first.reset();
  CHECK(platform::byte_is_locked(file.get(), 7));
  auto third = platform::reopen(file.get()).value();
  CHECK_FALSE(platform::try_lock_byte(third.get(), 7).value());
  second.reset();
  CHECK(platform::try_lock_byte(third.get(), 7).value());
}

TEST_CASE("a name finds its arena and cannot be created twice") {
  const OwnDirectory directory;
  const std::string name = unique_name();
  const auto arena = new_arena();
  auto made = Name::create(name, {NamedKind::kChannel, arena, 42, "a note"});
  REQUIRE(made.ok());
  auto opened = Name::open(name).value();
  CHECK(opened->object().arena == arena);
  CHECK(opened->object().block == 42);
  CHECK(opened->object().note == "a note");
  CHECK(opened->object().kind == NamedKind::kChannel);
  CHECK(Name::create(name, {NamedKind::kArena, arena, 0, ""}).code() == Code::kExists);
}

TEST_CASE("a name with parts is found under the same parts only") {
  const OwnDirectory directory;
  const std::string first = unique_name(), name = first + "/lidar/front";
  const auto arena = new_arena();
  auto made = Name::create(name, {NamedKind::kChannel, arena, 42, ""}).value();
  CHECK(Name::open(name).value()->object().block == 42);
  CHECK(std::filesystem::path(made->path()).filename() == first + "%2Flidar%2Ffront");
  for (const std::string& other : {std::string(first), first + "/lidar", first + "%2Flidar%2Ffront"})
    CHECK(Name::open(other).code() == Code::kNotFound);
  for (const std::string& wrong : {first + "//lidar", "/" + first, first + "/", first + "/.hidden", std::string("..")})
    CHECK(Name::create(wrong, {NamedKind::kChannel, arena, 42, ""}).code() == Code::kInvalid);
}

TEST_CASE("the last holder of a name removes its file") {
  const OwnDirectory directory;
  const std::string name = unique_name();
  const auto arena = new_arena();
  auto made = Name::create(name, {NamedKind::kArena, arena, 0, ""}).value();
  auto opened = Name::open(name).value();
  made.reset();
  CHECK(std::filesystem::exists(opened->path()));
  const std::string path = opened->path();
  opened.reset();
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(Name::open(name).code() == Code::kNotFound);
}

TEST_CASE("closing a locked file unlocks it despite a forked child") {
  const OwnDirectory directory;
  auto opened =
      platform::open_private_directory((directory.path / "own").string(), platform::IfMissing::kCreate).value();
  REQUIRE(platform::create_private_file(opened.get(), "x", "first", 5).ok());
  const test::Gate done;
  std::optional<platform::LockedFile> file(platform::LockedFile::open(opened.get(), "x", 0).value());
  test::Child child([&] { return done.wait() == 0; });
  file.reset();
  CHECK(platform::LockedFile::open(opened.get(), "x", 0).ok());
  done.open();
  CHECK(child.succeeded());
}

TEST_CASE("a name is in use while its file has a locked part") {
  const OwnDirectory directory;
  const std::string name = unique_name();
  const auto arena = new_arena();
  const discovery::NamedObject thing{NamedKind::kArena, arena, 0, ""};
  const std::string path = Name::create(name, thing).value()->path();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  auto opened = platform::open_private_directory(folder.string(), platform::IfMissing::kFail).value();
  char header[512] = "smtname2";  // without an entry of any process
  auto part = platform::create_private_file(opened.get(), name, header, sizeof header);
  REQUIRE(part.ok());
  CHECK(Name::create(name, thing).code() == Code::kExists);
  CHECK(Name::open(name).code() == Code::kNotFound);  // no process has an arena with this uuid
  CHECK(discovery::list_names().value().at(0).pids == std::vector<int>{platform::process_id()});
  CHECK(discovery::clean_names().value().empty());
  part->reset();
  CHECK(Name::create(name, thing).ok());
}

TEST_CASE("create_private_file leaves whole files and replaces none") {
  const OwnDirectory directory;
  auto opened =
      platform::open_private_directory((directory.path / "own").string(), platform::IfMissing::kCreate).value();
  CHECK(platform::create_private_file(opened.get(), "x", "first", 5).ok());
  CHECK(platform::create_private_file(opened.get(), "x", "other", 5).code() == Code::kExists);
  auto file = platform::LockedFile::open(opened.get(), "x", 0).value();
  CHECK(file.read().value().size() == 5);
  CHECK(platform::LockedFile::open(opened.get(), "x", 1'000'000).code() == Code::kTimeout);
  CHECK(platform::list_directory(opened.get()).value() == std::vector<std::string>{"x"});
}

TEST_CASE("list_records reports names and removes no stale ones") {
  const OwnDirectory directory;
  const auto arena = new_arena();
  const std::string name = unique_name();
  const auto find = [&name] {
    std::optional<discovery::SeenName> found;
    const auto looked = discovery::list_records();
    for (const discovery::SeenName& seen : looked.value()) {
      if (seen.name == name) found = seen;
    }
    return found;
  };
  test::Child child([&] {
    auto part = Name::create(name, {NamedKind::kArena, arena, 0, ""}).value();
    ::kill(::getpid(), SIGKILL);
    return part != nullptr;
  });
  REQUIRE(child.was_killed());
  for (int look = 0; look < 2; ++look) {
    const auto left = find();
    REQUIRE(left.has_value());
    CHECK_FALSE(left->has_parts);
  }
  const auto part = Name::create(name, {NamedKind::kChannel, arena, 77, ""}).value();
  const auto seen = find();
  REQUIRE(seen.has_value());
  CHECK(seen->kind == NamedKind::kChannel);
  CHECK(seen->block == 77);
  CHECK(std::equal(std::begin(seen->uuid), std::end(seen->uuid), arena->uuid()));
  CHECK(seen->has_parts);
}

TEST_CASE("a name in transit is kept until its last transfer ends") {
  const OwnDirectory directory;
  const std::string name = unique_name();
  const auto arena = new_arena();
  const discovery::NamedObject thing{NamedKind::kChannel, arena, 42, ""};
  auto made = Name::create(name, thing).value();
  const std::string path = made->path();
  discovery::NameInTransit given(*made);
  CHECK(given.is_of(*made));
  const auto in_transit = [&] { return memory::begin_transfer(arena, 0, memory::Transferred::kMemory).value(); };
  const std::uint64_t first = in_transit(), second = in_transit();
  REQUIRE(given.add(first).ok());
  REQUIRE(given.add(second).ok());
  made.reset();

  CHECK(Name::open(name).ok());
  CHECK(discovery::list_names().value().at(0).pids == std::vector<int>{::getpid()});
  test::Child stranger([&] {
    auto mine = new_arena();
    return Name::create(name, {NamedKind::kArena, mine, 0, ""}).code() == Code::kExists;
  });
  CHECK(stranger.succeeded());

  auto arrived = Name::join(path, arena).value();
  REQUIRE(arrived->note_arrival(first).ok());
  arrived.reset();
  CHECK(given.is_needed());
  CHECK(Name::open(name).ok());
  given.take_back(second);
  CHECK_FALSE(given.is_needed());
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a name in transit is kept for a giver with a hidden pid") {
  const OwnDirectory directory;
  const std::string name = unique_name();
  const auto arena = new_arena();
  const discovery::NamedObject thing{NamedKind::kArena, arena, 0, ""};
  const test::Gate given_it, done;
  test::Child giver([&] {
    const auto mine = new_arena();
    auto made = Name::create(name, {NamedKind::kArena, mine, 0, ""}).value();
    discovery::NameInTransit given(*made);
    if (!given.add(7).ok()) return false;
    const discovery::NameEntry unseen[2] = {{0, 0, 0}, {1 << 30, 3, 7}};  // as from another PID namespace
    const bool written = discovery::open_path(made->path())
                             .value()
                             .file.write(sizeof(discovery::NameHeader), unseen, sizeof unseen)
                             .ok();
    made.reset();
    if (!written) return false;
    given_it.open();
    return done.wait() == 0;
  });
  REQUIRE(given_it.wait() == 0);
  CHECK(Name::create(name, thing).code() == Code::kExists);
  CHECK(discovery::clean_names().value().empty());
  done.open();
  CHECK(giver.succeeded());
  CHECK(Name::create(name, thing).ok());
}

TEST_CASE("listing and cleaning names works or reports few descriptors") {
  if (test::under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  const OwnDirectory directory;
  const auto arena = new_arena();
  const std::string living = unique_name() + "-living", left = unique_name() + "-left";
  const auto part = Name::create(living, {NamedKind::kArena, arena, 0, ""}).value();
  const test::Gate made;
  test::Child owner([&] {
    const auto name = Name::create(left, {NamedKind::kArena, arena, 0, ""}).value();
    made.open();
    ::pause();
    return name != nullptr;
  });
  made.wait();
  owner.kill_and_wait();
  const int me = platform::process_id();
  for (rlim_t count = 0; count < 8; ++count) {
    CAPTURE(count);
    CHECK(test::succeeds_with_limit(RLIMIT_NOFILE, 3 + count, [&] {
      if (::close_range(3, ~0U, 0) != 0) return false;
      const auto swept = discovery::clean_names();
      const auto listed = discovery::list_names();
      const auto is_living = [&](const discovery::NameInfo& one) {
        return one.name == living && one.pids == std::vector<int>{me};
      };
      const bool is_swept = swept.ok() || platform::is_exhausted(swept.error());
      if (!listed) return is_swept && platform::is_exhausted(listed.error());
      return is_swept && std::any_of(listed->begin(), listed->end(), is_living);
    }));
  }
  CHECK(Name::open(living).ok());
}
