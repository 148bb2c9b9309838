// Any sequence of calls of a Latest, compared with a list of the published versions.
#include <array>
#include <map>
#include <random>

#include "support/catch2.h"
#include "support/latests.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::array<std::size_t, 4> kWords{1, 500, 3000, 20'000};

class Trial {
 public:
  Trial(unsigned seed, std::uint64_t history)
      : random_(seed), history_(history), arena_(new_arena()), store_(new_latest(history, arena_)) {
    empty_bytes_ = used_bytes(*arena_);
    for (const std::size_t words : kWords) {
      const Lease block = new_lease(*arena_, words * 8);
      bytes_of_[words] = used_bytes(*arena_) - empty_bytes_;
    }
  }

  // Makes a random call. Returns true if its result matches the list.
  bool act() {
    switch (below(10)) {
      case 0:
      case 1: return publishes();
      case 2: return another_publishes();
      case 3:
      case 4: return reads_newest();
      case 5:
      case 6: return reads_any();
      case 7: return lets_go();
      case 8: return leaves();
      default: return opens_and_reconciles();
    }
  }

  bool is_right() {
    const std::uint64_t newest = published_.size();
    std::uint64_t expected = empty_bytes_, versions = 0, frames = 0;
    std::map<std::uint64_t, std::size_t> kept;  // words of each version
    for (std::uint64_t version = 1; version <= newest; ++version) {
      if (!is_there(version)) continue;
      kept[version] = published_[version - 1].words;
      ++versions;
      frames += published_[version - 1].words * 8;
    }
    for (const Held& held : held_) {
      if (!is_whole(held)) return false;
      kept[held.version] = published_[held.version - 1].words;
    }
    for (const auto& [version, words] : kept) expected += bytes_of_[words];
    const auto there = store_->retained();
    return store_->version() == newest && there.versions == versions && there.bytes == frames &&
           used_bytes(*arena_) == expected && check_ring(*store_->ring()).empty() && check_arena(*arena_).empty();
  }

 private:
  struct Version {
    std::uint64_t value;
    std::size_t words;
  };
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool is_there(std::uint64_t version) const {
    return version != 0 && version <= published_.size() && version + history_ >= published_.size();
  }
  bool is_whole(const Held& held) const {
    const Version& version = published_[held.version - 1];
    return held.bytes == version.words * 8 && value_of(held) == version.value;
  }
  // Keeps up to five held versions.
  void keep(Held held) {
    if (held_.size() < 5) held_.push_back(std::move(held));
  }

  bool publishes() {
    published_.push_back({random_(), kWords[below(kWords.size())]});
    publishing_ = true;
    return publish(*store_, published_.back().value, published_.back().words).value() == published_.size();
  }
  bool another_publishes() {
    published_.push_back({random_(), kWords[below(kWords.size())]});
    Child child([&] {
      const auto version = publish(*store_, published_.back().value, published_.back().words);
      store_->ring()->leave();
      return version.ok() && *version == published_.size();
    });
    return child.succeeded() && store_->publishers() == pids() && recovers();
  }
  bool reads_newest() {
    const std::uint64_t newest = published_.size(), known = below(newest + 2);
    const Status waited = store_->wait_for_newer(known, no_wait());
    auto held = store_->newest(known);
    if (newest <= known) {
      const Code expected = publishing_ || (newest == 0 && attached_) ? Code::kEmpty : Code::kClosed;
      return waited.code() == expected && held.code() == Code::kEmpty;
    }
    if (!waited || !held || held->version != newest || !is_whole(*held)) return false;
    keep(std::move(*held));
    return true;
  }
  bool reads_any() {
    const std::uint64_t newest = published_.size();
    const std::uint64_t version = newest + 1 - std::min(newest + 1, below(history_ + 4));
    auto held = store_->at(version);
    if (!is_there(version)) return held.code() == Code::kNotFound;
    if (!held || held->version != version || !is_whole(*held)) return false;
    keep(std::move(*held));
    return true;
  }
  bool lets_go() {
    if (!held_.empty()) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(below(held_.size())));
    return true;
  }
  bool leaves() {
    store_->ring()->leave();
    publishing_ = attached_ = false;
    return store_->publishers().empty();
  }
  // Recovers what exited children had.
  bool recovers() {
    arena_->participants().check(0);
    return arena_->reconcile(patience()).ok();
  }
  bool opens_and_reconciles() {
    attached_ = true;
    return LatestStore::open(arena_, store_->block(), patience()).value()->ring() == store_->ring() && recovers();
  }
  std::vector<int> pids() const { return publishing_ ? std::vector<int>{getpid()} : std::vector<int>{}; }

  std::mt19937 random_;
  const std::uint64_t history_;
  const std::shared_ptr<Arena> arena_;
  const std::shared_ptr<LatestStore> store_;
  std::uint64_t empty_bytes_ = 0;
  std::map<std::size_t, std::uint64_t> bytes_of_;  // bytes of a block, by its words
  std::vector<Version> published_;
  std::vector<Held> held_;
  bool publishing_ = false, attached_ = true;
};

}  // namespace

// guarantee: latest-pins
TEST_CASE("A Latest matches a list model for random calls") {
  for (const std::uint64_t history : {0u, 1u, 4u}) {
    for (unsigned seed = 1; seed <= (kThreadSanitizer || under_valgrind() ? 1 : 30); ++seed) {
      Trial trial(seed, history);
      for (int i = 0; i < 150; ++i) {
        INFO("seed " << seed << ", history " << history << ", call " << i);
        REQUIRE(trial.act());
        REQUIRE(trial.is_right());
      }
    }
  }
}
