// Loads altered files, and the files of saves that were killed or failed. A load returns correct rows or a clear error.
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <random>

#include "platform/checksum.h"
#include "support/catch2.h"
#include "support/saved.h"
#include "support/versions.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr ShapeOptions kOptions{.capacity = 8, .rows_per_chunk = 2, .ahead = 1, .finals = true};
constexpr std::array<std::uint64_t, 2> kSmallLeaves{8, 300};

std::shared_ptr<Store> small_store(std::uint64_t rows) {
  const auto shape = replay::shape_of(kSmallLeaves, kOptions).value();
  auto store = Store::create(new_arena(), shape, {}, patience()).value();
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < rows; ++i) {
    std::vector<std::uint64_t> large(38, i);
    writer.add(std::array<replay::Column, 2>{&i, large.data()}, {.done = i % 3 == 2}, patience()).value();
  }
  return store;
}

// Returns true for an error that names a file: kCorrupt, or kIncompatible for a damaged version number.
bool is_found(const Result<std::shared_ptr<Store>>& loaded, const std::string& name = "") {
  if (loaded.ok() || (loaded.code() != Code::kCorrupt && loaded.code() != Code::kIncompatible)) return false;
  return loaded.error().message.find(name.empty() ? "/saved/" : name) != std::string::npos;
}

}  // namespace

// guarantee: replay-files
TEST_CASE("A changed byte in any file is detected and the file named") {
  const TemporaryFolder folder;
  const auto arena = new_arena();
  const auto store = small_store(5);
  save(store, folder);
  Writer writer(store, 2);
  const std::uint64_t number = 9;
  writer.add(std::array<replay::Column, 2>{&number, std::vector<char>(300).data()}, patience()).value();
  save(store, folder);
  REQUIRE(loaded(folder, kOptions, arena).ok());
  REQUIRE(files_in(folder.saved()).size() == 3);
  for (const auto& file : files_in(folder.saved())) {
    const std::string good = bytes_of(file);
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      write_bytes(file, bad);
      INFO(file << " at " << at);
      REQUIRE(is_found(loaded(folder, kOptions, arena)));
    }
    write_bytes(file, good);
  }
  CHECK(loaded(folder, kOptions, arena).ok());
}

TEST_CASE("load names both versions of a file with any checksum") {
  const TemporaryFolder folder;
  save(small_store(5), folder);
  for (const auto& file : files_in(folder.saved())) {
    const std::string good = bytes_of(file);
    std::string other = good;
    other[8] = 77;
    write_bytes(file, other);
    const auto refused = loaded(folder, kOptions);
    CHECK(names_versions(refused.error(), 77, replay::kSavedVersion));
    CHECK(refused.error().message.find(file.string() + " ") == 0);
    write_bytes(file, good);
  }
  CHECK(loaded(folder, kOptions).ok());
}

// guarantee: replay-files
TEST_CASE("A truncated or grown or missing or foreign file is detected") {
  const TemporaryFolder folder, others;
  const auto arena = new_arena();
  save(small_store(5), folder);
  save(small_store(5), others);
  for (const auto& file : files_in(folder.saved())) {
    const std::string good = bytes_of(file), name = file.filename();
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, good.size() / 2, good.size() - 1}) {
      write_bytes(file, good.substr(0, size));
      CHECK(is_found(loaded(folder, kOptions, arena), name));
    }
    write_bytes(file, good + "x");
    CHECK(is_found(loaded(folder, kOptions, arena), name));
    write_bytes(file, bytes_of(std::filesystem::path(others.saved()) / name));
    CHECK(is_found(loaded(folder, kOptions, arena)));
    std::filesystem::remove(file);
    const auto missing = loaded(folder, kOptions, arena);
    CHECK((name == "manifest" ? missing.code() == Code::kNotFound : is_found(missing, name)));
    write_bytes(file, good);
  }
  CHECK(loaded(folder, kOptions, arena).ok());
}

TEST_CASE("Forged manifests with right checksums are refused or valid") {
  const TemporaryFolder folder;
  const auto arena = new_arena();
  save(small_store(7), folder);
  const std::string manifest = folder.saved() + "/manifest", good = bytes_of(manifest);
  std::mt19937_64 random(20261123);
  constexpr std::array<std::uint64_t, 7> kNumbers{0, 1, 2, 63, 0xffff, 0xffffffff, ~std::uint64_t{0}};
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (std::uint64_t changes = 1 + random() % 3; changes != 0; --changes) {
      const std::size_t at = 16 + random() % (bad.size() / 4 - 4) * 4;
      const std::uint64_t number = random() % 2 == 0 ? kNumbers[random() % kNumbers.size()] : random() >> random() % 64;
      std::memcpy(bad.data() + at, &number, std::min<std::size_t>(random() % 2 == 0 ? 4 : 8, bad.size() - at));
    }
    std::memset(bad.data() + 12, 0, 4);
    const std::uint32_t sum = platform::crc32c(0, bad.data(), bad.size());
    std::memcpy(bad.data() + 12, &sum, 4);
    write_bytes(manifest, bad);
    const auto back = loaded(folder, kOptions, arena);
    if (back) REQUIRE(check_rows(**back).empty());
  }
}

namespace {

// Applies `change` to the manifest of the folder, and writes it with a correct checksum.
void change_manifest(const TemporaryFolder& folder, const std::function<void(replay::Manifest&)>& change) {
  const auto opened = platform::Folder::open(folder.saved()).value();
  auto manifest = replay::Manifest::read(opened).value();
  change(manifest);
  manifest.write(opened).value();
  opened.rename(replay::kNextManifestName, replay::kManifestName).value();
}

}  // namespace

TEST_CASE("A manifest that names a file or a part twice is refused") {
  const TemporaryFolder folder;
  save(small_store(7), folder);
  const std::string manifest = folder.saved() + "/manifest", good = bytes_of(manifest);
  change_manifest(folder, [](replay::Manifest& saved) { saved.files.push_back(saved.files.front()); });
  CHECK(is_found(loaded(folder, kOptions), "twice"));
  write_bytes(manifest, good);
  change_manifest(folder, [](replay::Manifest& saved) {
    for (int i = 0; i < 10; ++i) saved.parts.push_back(saved.parts.back());
  });
  CHECK(is_found(loaded(folder, kOptions), "twice"));
  write_bytes(manifest, good);
  CHECK(loaded(folder, kOptions).ok());
}

TEST_CASE("An invalid or foreign note is a corrupt manifest") {
  const TemporaryFolder folder;
  save(small_store(7), folder);  // a store without a note
  const auto spec = Loader::open(folder.saved()).value().spec();
  REQUIRE(spec.code() == Code::kCorrupt);
  CHECK(spec.error().message.starts_with(folder.saved() + "/manifest: "));
  replay::Spec other;
  other.row = {.form = replay::SpecPart::Form::kLeaf};
  other.leaves = {{.dtype = "<i8", .item_bytes = 8}};
  other.samplers = {{"uniform", {}}};
  change_manifest(folder, [&](replay::Manifest& saved) {
    const std::string note = replay::pack(other);
    const auto bytes = std::as_bytes(std::span(note));
    saved.note.assign(bytes.begin(), bytes.end());
    saved.header.note_bytes = bytes.size();
  });
  const auto of_others = Loader::open(folder.saved()).value().spec();
  REQUIRE(of_others.code() == Code::kCorrupt);
  CHECK(of_others.error().message == folder.saved() + "/manifest: its specification does not match its rows");
}

TEST_CASE("load allocates nothing for rows that the files cannot hold") {
  const TemporaryFolder folder;
  save(small_store(7), folder);
  change_manifest(folder, [](replay::Manifest& saved) {
    std::erase_if(saved.parts, [](const replay::SavedPart& part) { return part.kind == replay::PartKind::kRows; });
  });
  const auto arena = new_arena();
  const auto store = Store::create(arena, replay::shape_of(kSmallLeaves, kOptions).value(), {}, patience()).value();
  const std::uint64_t used = arena->pool().used_bytes();
  auto loader = Loader::open(folder.saved()).value();
  const Status done = loader.load_into(*store, nullptr, patience());
  REQUIRE(done.code() == Code::kCorrupt);
  CHECK(done.error().message.find("but the files have 0") != std::string::npos);
  CHECK(arena->pool().used_bytes() == used);
}

TEST_CASE("load refuses a saved capacity far larger than the files") {
  const TemporaryFolder folder;
  save(small_store(7), folder);
  const auto loader = Loader::open(folder.saved()).value();
  CHECK(loader.check_overhead(256u << 20).ok());
  const Status refused = loader.check_overhead(350u << 20);
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.find("a capacity of 8 rows in chunks of 2") != std::string::npos);
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: replay-files
TEST_CASE("A save killed anywhere leaves the old rows or the new rows") {
  const TemporaryFolder folder;
  const auto arena = new_arena();
  const auto store = small_store(5);
  save(store, folder);
  const auto before = rows_of(store);
  Writer writer(store, 2);
  const std::uint64_t number = 9;
  writer.add(std::array<replay::Column, 2>{&number, std::vector<char>(300).data()}, patience()).value();
  writer.end({}, false, patience()).value();
  const auto after = rows_of(store);
  REQUIRE(before != after);
  int olds = 0, news = 0;
  for (std::int64_t at = 1;; ++at) {
    if (!killed_at_change(at, [&] { save(store, folder); })) break;
    const auto rows = rows_of(loaded(folder, kOptions, arena).value());
    INFO("killed at " << at);
    REQUIRE((rows == before || rows == after));
    ++(rows == before ? olds : news);
    if (rows == after) {  // the save below starts with an empty folder
      std::filesystem::remove_all(folder.saved());
      break;
    }
  }
  CHECK(olds > 5);
  CHECK(news == 1);
  save(store, folder);
  CHECK(rows_of(loaded(folder, kOptions, arena).value()) == after);
  CHECK(files_in(folder.saved()).size() == 2);
}

#endif

// guarantee: replay-files
TEST_CASE("A save that cannot write keeps the last save unchanged") {
  const TemporaryFolder folder;
  const auto arena = new_arena();
  const auto store = small_store(5);
  save(store, folder);
  const auto before = rows_of(store);
  const auto files = files_in(folder.saved());
  Writer writer(store, 2);
  const std::uint64_t number = 9;
  writer.add(std::array<replay::Column, 2>{&number, std::vector<char>(300).data()}, patience()).value();
  writer.end({}, false, patience()).value();
  for (std::uint64_t most = 0; most < 450; most += 8) {
    INFO("files of " << most << " bytes");
    Child child([&] {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{most, most};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
      const auto saved = replay::save(*store, nullptr, folder.saved(), patience());
      return saved.code() == Code::kOs && saved.error().os_errno == EFBIG;
    });
    REQUIRE(child.succeeded());
    REQUIRE(files_in(folder.saved()) == files);
    REQUIRE(rows_of(loaded(folder, kOptions, arena).value()) == before);
  }
  CHECK(save(store, folder).save == 2);
  CHECK(rows_of(loaded(folder, kOptions, arena).value()) == rows_of(store));
}
