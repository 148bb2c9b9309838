// Any sequence of calls of a Broadcast, compared with a list of the messages.
#include <array>
#include <map>
#include <random>

#include "support/broadcasts.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

struct Message {
  std::uint64_t number;
  std::size_t words;
  std::uint64_t bytes() const { return words * 8; }
};

struct ModelReader {
  std::unique_ptr<Subscriber> subscriber;
  Policy policy;
  std::uint64_t position;
  std::uint64_t missed = 0;
};

class Trial {
 public:
  // `words`: size of all messages. 0: random sizes, some in blocks and some in the ring.
  Trial(unsigned seed, const broadcast::Options& options, std::size_t words)
      : random_(seed), options_(options), words_(words), ring_(new_ring(options, arena_)) {
    empty_bytes_ = used_bytes(*arena_);
  }

  // Makes a random call. Returns true if its result matches the list.
  bool act() {
    const std::uint64_t what = below(100);
    if (what < 40) return puts();
    if (what < 43) return another_puts();
    if (what < 85) return reads();
    if (what < 93) return subscribes();
    if (what < 98) return closes();
    return opens_and_reconciles();
  }

  // Returns the first difference from the list, or an empty string.
  std::string wrong() {
    for (const auto& [message, number] : held_) {
      if (number_in(message) != number) return "a message that is held has changed";
    }
    for (const ModelReader& reader : readers_) {
      if (reader.subscriber->size() != unread_of(reader)) return "a reader's size";
      if (reader.subscriber->missed() != reader.missed) return "what a reader has missed";
    }
    if (ring_->tail() != end()) return "the tail";
    if (ring_->readers() != readers_.size()) return "the number of readers";
    if (!memory_is_right()) return "memory";
    return check_ring(*ring_) + check_arena(*arena_);
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  std::uint64_t end() const { return put_.size(); }
  std::uint64_t last(std::uint64_t count) const { return end() - std::min(end(), count); }
  // First message that a reader of a policy other than kBlock can find.
  std::uint64_t oldest() const { return last(std::max(options_.capacity, options_.history)); }
  // First message that a reader has not read, or that a new reader may request.
  std::uint64_t kept() const {
    std::uint64_t slowest = end();
    for (const ModelReader& reader : readers_) slowest = std::min(slowest, reader.position);
    return std::min(slowest, last(options_.history));
  }
  std::uint64_t next_of(const ModelReader& reader) const {
    if (reader.policy == Policy::kBlock || reader.position == end()) return reader.position;
    return std::max(reader.position, reader.policy == Policy::kLatest ? end() - 1 : oldest());
  }
  std::uint64_t unread_of(const ModelReader& reader) const { return end() - next_of(reader); }

  bool has_space(std::uint64_t bytes) const {
    for (const ModelReader& reader : readers_) {
      if (reader.policy != Policy::kBlock || reader.position == end()) continue;
      if (end() - reader.position >= options_.capacity) return false;
      std::uint64_t queued = bytes;
      for (std::uint64_t i = reader.position; i < end(); ++i) queued += put_[i].bytes();
      if (options_.max_bytes != 0 && queued > options_.max_bytes) return false;
    }
    return true;
  }
  // Expects a page for each reader, and for each block that is in the ring or held. Blocks between small messages may
  // be freed later, although all readers have read them.
  bool memory_is_right() const {
    const std::uint64_t in_ring = last(std::max(options_.capacity, options_.history) + 1);
    std::uint64_t held = 0, kept_blocks = 0, ring_blocks = 0;
    for (const auto& [message, number] : held_) {
      held += message.block.valid() && message.ticket < std::max(kept(), in_ring);
    }
    for (std::uint64_t i = in_ring; i < end(); ++i) {
      if (put_[i].bytes() <= broadcast::kInlineBytes) continue;
      kept_blocks += i >= kept();
      ring_blocks += 1;
    }
    const std::uint64_t blocks = (used_bytes(*arena_) - empty_bytes_) / 4096 - readers_.size();
    if (words_ != 0) return blocks == kept_blocks + held;
    return kept_blocks + held <= blocks && blocks <= ring_blocks + held;
  }

  Message new_message() {
    constexpr std::array<std::size_t, 4> lengths{1, kSmallWords, kSmallWords + 1, kBlockWords};
    return {random_(), words_ != 0 ? words_ : lengths[below(lengths.size())]};
  }
  bool puts() {
    const Message message = new_message();
    const auto ticket = put(*ring_, message.number, message.words, no_wait());
    if (!has_space(message.bytes())) return ticket.code() == Code::kFull;
    put_.push_back(message);
    return ticket.ok() && *ticket == end() - 1;
  }
  bool another_puts() {
    const Message message = new_message();
    const bool fits = has_space(message.bytes());
    Child child([&] {
      const auto ticket = put(*ring_, message.number, message.words, no_wait());
      ring_->leave();
      return fits ? ticket.ok() && *ticket == end() : ticket.code() == Code::kFull;
    });
    if (fits) put_.push_back(message);
    return child.succeeded() && recovers();
  }
  bool reads() { return readers_.empty() || read_by(readers_[below(readers_.size())]); }
  bool read_by(ModelReader& reader) {
    const std::uint64_t next = next_of(reader);
    broadcast::Incoming message;
    const auto got = reader.subscriber->get(message, no_wait());
    const bool told = reader.policy == Policy::kRaise && next != reader.position;
    const std::uint64_t missed = next - reader.position;
    reader.missed += missed;
    reader.position = next;
    if (told) return got.code() == Code::kOverrun && got.error().missed == missed;
    if (next == end()) return got.code() == (is_putting() ? Code::kEmpty : Code::kClosed);
    ++reader.position;
    const Message& expected = put_[next];
    if (!got || message.ticket != next || message.bytes != expected.bytes()) return false;
    if (number_in(message) != expected.number) return false;
    hold(std::move(message), expected.number);
    return true;
  }
  // A forked process may put, and has exited. This process stays a publisher after its first put.
  bool is_putting() const { return end() == 0 || !ring_->publishers().empty(); }
  // Keeps up to four messages.
  void hold(broadcast::Incoming message, std::uint64_t number) {
    const auto is_it = [&](const auto& each) { return each.first.ticket == message.ticket; };
    if (held_.size() == 4) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(below(4)));
    if (std::none_of(held_.begin(), held_.end(), is_it)) held_.emplace_back(std::move(message), number);
  }
  bool subscribes() {
    constexpr std::array<Policy, 4> policies{Policy::kBlock, Policy::kSkip, Policy::kLatest, Policy::kRaise};
    const Policy policy = policies[below(4)];
    const bool from_oldest = below(2) == 0;
    if (readers_.size() == 5) return true;
    const std::uint64_t from = from_oldest ? std::max(oldest(), kept()) : end();
    readers_.push_back({subscribe(ring_, policy, from_oldest), policy, from});
    return true;
  }
  // Reads first: a subscription that was never read could still belong to a forked child.
  bool closes() {
    if (readers_.empty()) return true;
    const auto reader = readers_.begin() + static_cast<std::ptrdiff_t>(below(readers_.size()));
    const bool was_right = read_by(*reader);
    readers_.erase(reader);
    return was_right;
  }
  // Recovers what exited children had.
  bool recovers() {
    arena_->participants().check(0);
    return arena_->reconcile(patience()).ok();
  }
  bool opens_and_reconciles() { return Ring::open(arena_, ring_->block(), patience()).value() == ring_ && recovers(); }

  std::mt19937 random_;
  const broadcast::Options options_;
  const std::size_t words_;
  const std::shared_ptr<Arena> arena_ = new_arena();
  const std::shared_ptr<Ring> ring_;
  std::uint64_t empty_bytes_ = 0;
  std::vector<Message> put_;
  std::vector<ModelReader> readers_;
  std::vector<std::pair<broadcast::Incoming, std::uint64_t>> held_;
};

}  // namespace

// guarantee: broadcast-order
TEST_CASE("A Broadcast matches a list model for random calls") {
  for (const broadcast::Options& options :
       {broadcast::Options{.capacity = 1}, broadcast::Options{.capacity = 4},
        broadcast::Options{.capacity = 3, .history = 2}, broadcast::Options{.capacity = 2, .history = 6},
        broadcast::Options{.capacity = 6, .max_bytes = 4000}}) {
    for (const std::size_t words : {std::size_t{0}, kSmallWords, kBlockWords}) {
      for (unsigned seed = 1; seed <= (kThreadSanitizer || under_valgrind() ? 1 : 20); ++seed) {
        Trial trial(seed, options, words);
        for (int i = 0; i < 250; ++i) {
          INFO("seed " << seed << ", capacity " << options.capacity << ", history " << options.history << ", " << words
                       << " words, call " << i);
          REQUIRE(trial.act());
          REQUIRE(trial.wrong() == "");
        }
      }
    }
  }
}
