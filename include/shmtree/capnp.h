/// @file
/// Cap'n Proto messages: sends and receives your own types. Only this header needs Cap'n Proto's headers and library.
/// Link `shmtree::capnp` (CMake).
///
///     capnp::MallocMessageBuilder builder;
///     builder.initRoot<Pose>().setX(1);
///     sender.put<Pose>(builder).value();                                  // copied once
///     sender.put(shmtree::Dict{{"seq", 7}, {"pose", shmtree::capnp_ref<Pose>(builder)}}).value();
///
///     shmtree::ArenaMessageBuilder in_place(sender);                      // filled in place
///     in_place.initRoot<Pose>().setX(2);
///     sender.put<Pose>(in_place).value();                                 // not copied
///
///     const shmtree::CapnpItem<Pose> pose = receiver.get().value().capnp<Pose>();
///     use(pose->getX());                                                  // read in place
///
/// Ownership: a CapnpItem keeps its message alive; the readers that it returns do not. An ArenaMessageBuilder keeps the
/// memory of its segments alive until it is destroyed.
///
/// Thread safety: several threads may read a CapnpItem; a builder is not thread-safe.
///
/// Errors: `put` returns the errors of Sender::put(), and kInvalid if the builder has no root. `capnp<T>()` throws
/// BadResult; `try_capnp<T>()` returns the error. It is kInvalid if the node has another kind or schema id, or if its
/// memory is not aligned to 8 bytes. It is kCorrupt if segments overlap, or if the root is not a struct of that type.
/// Cap'n Proto checks everything else on access and throws kj::Exception. Other processes can change the bytes of a
/// message in shared memory while they are read, and Cap'n Proto's readers and builders do not guard against such
/// changes (docs/security.md). `CapnpOptions{.copy = true}` reads a private copy.
#pragma once

#include <capnp/message.h>
#include <capnp/schema.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

/// A received Cap'n Proto message with root type T. Keeps the message alive.
/// Copies are cheap, refer to the same message and share its traversal limit.
template <class T>
class CapnpItem {
 public:
  using Reader = typename T::Reader;  ///< Cap'n Proto's reader for T.

  /// Returns the root reader. It is valid while this CapnpItem or a copy exists.
  const Reader& operator*() const& noexcept { return root_; }
  /// Calls the root reader.
  const Reader* operator->() const& noexcept { return &root_; }
  /// Does not compile, because the readers of a temporary become invalid with it. Keep the CapnpItem in a variable.
  const Reader& operator*() const&& = delete;
  /// The same.
  const Reader* operator->() const&& = delete;

 private:
  friend struct detail::CapnpAccess;
  struct Message {
    Item item;
    std::unique_ptr<std::uint64_t[]> copy;
    std::vector<kj::ArrayPtr<const capnp::word>> segments;
    capnp::SegmentArrayMessageReader reader;

    Message(Item of, std::unique_ptr<std::uint64_t[]> copied, std::vector<kj::ArrayPtr<const capnp::word>> words,
            capnp::ReaderOptions options)
        : item(std::move(of)),
          copy(std::move(copied)),
          segments(std::move(words)),
          reader(kj::arrayPtr(segments.data(), segments.size()), options) {}
  };
  explicit CapnpItem(std::shared_ptr<Message> message)
      : message_(std::move(message)), root_(message_->reader.template getRoot<T>()) {}

  std::shared_ptr<Message> message_;
  Reader root_;
};

namespace detail {

/// Builds CapnpItems from Items.
struct CapnpAccess {
  template <class T>
  static Result<CapnpItem<T>> make(const Item& item, const CapnpOptions& options) {
    const Result<CapnpRef> found = item.capnp_segments();
    if (!found) return found.error();
    if (found->schema_id != capnp::typeId<T>()) return other_schema(found->schema_id, capnp::typeId<T>());
    std::size_t total = 0;
    for (const auto& segment : found->segments) total += segment.size();
    std::unique_ptr<std::uint64_t[]> copy;
    if (options.copy) copy.reset(new std::uint64_t[total / sizeof(std::uint64_t) + 1]);
    std::vector<kj::ArrayPtr<const capnp::word>> words;
    words.reserve(found->segments.size());
    std::byte* to = reinterpret_cast<std::byte*>(copy.get());
    for (const auto& segment : found->segments) {
      const std::byte* from = segment.data();
      if (to != nullptr && !segment.empty()) {
        std::memcpy(to, from, segment.size());
        from = std::exchange(to, to + segment.size());
      }
      const bool is_aligned = std::bit_cast<std::uintptr_t>(from) % sizeof(capnp::word) == 0;
      if (!is_aligned && !segment.empty()) return unaligned_segment();
      words.emplace_back(reinterpret_cast<const capnp::word*>(from), segment.size() / sizeof(capnp::word));
    }
    capnp::ReaderOptions limits;
    limits.traversalLimitInWords = options.traversal_words != 0
                                       ? options.traversal_words
                                       : std::max<std::uint64_t>(limits.traversalLimitInWords, total);
    limits.nestingLimit = options.nesting_levels;
    using Message = typename CapnpItem<T>::Message;
    try {
      return CapnpItem<T>(std::make_shared<Message>(item, std::move(copy), std::move(words), limits));
    } catch (const kj::Exception& refused) {
      return no_capnp_root(refused.getDescription().cStr());
    }
  }
};

}  // namespace detail

template <class T>
Result<CapnpItem<T>> Item::try_capnp(const CapnpOptions& options) const {
  return or_out_of_memory([&]() -> Result<CapnpItem<T>> {
    Result<CapnpItem<T>> item = detail::CapnpAccess::make<T>(*this, options);
    if (!item) return on_the_way(std::move(item).error());
    return item;
  });
}

template <class T>
CapnpItem<T> Item::capnp(const CapnpOptions& options) const {
  return try_capnp<T>(options).value();
}

/// Builds a Cap'n Proto message in the memory of an arena, so that put() copies nothing. It grows like Cap'n Proto's
/// own builders: each new segment is as large as all segments before it together.
///
/// The first put into a channel of this arena transfers the memory to the receivers. Do not write to the builder, or to
/// anything got from it, after that. Later puts copy. Do not write to the builder in a forked child. A put by the child
/// copies, and so does a put by the parent while a child that inherited the memory is running.
class ArenaMessageBuilder final : public capnp::MessageBuilder {
 public:
  /// Allocates segments from the arena of `home`: an Arena, Sender, Broadcast or Latest. Keeps a copy of that handle,
  /// so a Sender counts as open until the builder is destroyed. Allocates the first segment, and later another whenever
  /// the last one is full. Waits for memory up to `timeout` each time, and throws BadResult with the error of
  /// new_array() if there is none. The builder is then in the state that it had before the call that threw.
  template <class Home>
  requires requires(const Home& home) { home.new_array(DType::kUInt8, std::vector<std::int64_t>{}, Timeout()); }
  explicit ArenaMessageBuilder(const Home& home, Timeout timeout = std::nullopt,
                               std::size_t first_segment_words = capnp::SUGGESTED_FIRST_SEGMENT_WORDS)
      : new_block_([home, timeout](std::int64_t bytes) { return home.new_array(DType::kUInt8, {bytes}, timeout); }),
        first_(new_segment(std::max<std::size_t>(first_segment_words, 1))) {}

  /// Allocates a zeroed segment; called by Cap'n Proto.
  kj::ArrayPtr<capnp::word> allocateSegment(unsigned minimum_words) override {
    if (first_.size() != 0) return std::exchange(first_, nullptr);
    return new_segment(std::max<std::size_t>(minimum_words, std::min(all_words_, kMaxSegmentWords)));
  }

 private:
  template <class T, class Builder>
  friend struct detail::CapnpOf;
  static constexpr std::size_t kMaxSegmentWords = (std::size_t{1} << 29) - 1;

  kj::ArrayPtr<capnp::word> new_segment(std::size_t words) {
    NewArray block = new_block_(static_cast<std::int64_t>(words * sizeof(capnp::word))).value();
    void* begin = block.mutable_data();
    std::memset(begin, 0, words * sizeof(capnp::word));  // Cap'n Proto expects zeros
    blocks_.push_back(std::move(block));
    all_words_ += words;
    return {static_cast<capnp::word*>(begin), words};
  }
  /// Returns the size of the block that starts at `begin`, or 0.
  std::size_t bytes_of_block(const void* begin) const noexcept {
    for (const ArrayRef& block : blocks_) {
      if (block.data == begin) return static_cast<std::size_t>(block.shape[0]);
    }
    return 0;
  }

  std::function<Result<NewArray>(std::int64_t)> new_block_;
  std::vector<ArrayRef> blocks_{};
  std::size_t all_words_ = 0;
  // The first segment, until Cap'n Proto asks for it. It is allocated in advance because Cap'n Proto's builder is
  // unusable once the allocation of its first segment has failed.
  kj::ArrayPtr<capnp::word> first_;
};

namespace detail {

template <class T, class Builder>
requires std::derived_from<Builder, capnp::MessageBuilder>
struct CapnpOf<T, Builder> {
  static CapnpRef refer(Builder& builder) {
    CapnpRef message{.schema_id = capnp::typeId<T>()};
    for (const auto& segment : builder.getSegmentsForOutput()) {
      message.segments.push_back(std::as_bytes(std::span(segment.begin(), segment.size())));
      if constexpr (std::same_as<Builder, ArenaMessageBuilder>) {
        message.lent_bytes.push_back(builder.bytes_of_block(segment.begin()));
      }
    }
    return message;
  }
};

}  // namespace detail

/// Refers to a builder's message with root type T, for use in a Value: `Dict{{"pose", capnp_ref<Pose>(builder)}}`.
/// Do not change the builder until put() has returned.
template <class T, detail::CapnpBuilder<T> Builder>
CapnpRef capnp_ref(Builder& builder) {
  return detail::CapnpOf<T, Builder>::refer(builder);
}

}  // namespace shmtree
