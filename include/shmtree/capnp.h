/// @file
/// Messages of Cap'n Proto: types of your own, sent and received. This header needs Cap'n Proto's headers and library,
/// and no other header of shmtree does: link `shmtree::capnp` (CMake).
///
///     capnp::MallocMessageBuilder builder;
///     builder.initRoot<Pose>().setX(1);
///     sender.put<Pose>(builder).value();                                  // copied once
///     sender.put(shmtree::Dict{{"seq", 7}, {"pose", shmtree::capnp_ref<Pose>(builder)}}).value();
///
///     const shmtree::CapnpItem<Pose> pose = receiver.get().value().capnp<Pose>();
///     use(pose->getX());                                                  // read where it lies
///
/// Ownership: a CapnpItem keeps its message; the readers that it gives out do not. Thread safety: a CapnpItem may be read by several threads, as any
/// MessageReader of Cap'n Proto; a builder by none.
/// Errors: `put` as of Sender::put(), and kInvalid for a builder without a root. `capnp<T>()` throws BadResult, and
/// `try_capnp<T>()` returns it: kInvalid for a node of another kind, or of another schema id, or whose memory is not
/// aligned to 8 bytes; kCorrupt for segments that overlap, and for a root that is no struct of that type. Everything
/// else Cap'n Proto checks when it is read, and throws kj::Exception. Other processes can change the bytes of a message
/// in shared memory while they are read, and Cap'n Proto's readers and builders are not made for that:
/// docs/security.md. `CapnpOptions{.copy = true}` reads a private copy.
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
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

/// A received message of Cap'n Proto whose root is a T: a reader of it, `pose->getX()`, and a hold on the message.
/// Copies are cheap, refer to the same message and share its traversal limit.
template <class T>
class CapnpItem {
 public:
  using Reader = typename T::Reader;

  /// The reader. What it gives out is valid as long as this, a copy of it, or an Item of the message lives.
  const Reader& operator*() const noexcept { return root_; }
  /// The same.
  const Reader* operator->() const noexcept { return &root_; }

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

/// What CapnpItems are made of.
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
      if (std::bit_cast<std::uintptr_t>(from) % sizeof(capnp::word) != 0) return unaligned_segment();
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
    Result<CapnpItem<T>> made = detail::CapnpAccess::make<T>(*this, options);
    if (!made) return on_the_way(std::move(made).error());
    return made;
  });
}

template <class T>
CapnpItem<T> Item::capnp(const CapnpOptions& options) const {
  return try_capnp<T>(options).value();
}

namespace detail {

template <class T, class Builder>
requires std::derived_from<Builder, capnp::MessageBuilder>
struct CapnpOf<T, Builder> {
  static CapnpRef refer(Builder& builder) {
    CapnpRef message{.schema_id = capnp::typeId<T>()};
    for (const auto& segment : builder.getSegmentsForOutput()) {
      message.segments.push_back(std::as_bytes(std::span(segment.begin(), segment.size())));
    }
    return message;
  }
};

}  // namespace detail

/// The message in a builder, whose root is a T, as a part of a Value: `Dict{{"pose", capnp_ref<Pose>(builder)}}`. The
/// builder's memory is the caller's, and not to be changed until put() has returned.
template <class T, detail::CapnpBuilder<T> Builder>
CapnpRef capnp_ref(Builder& builder) {
  return detail::CapnpOf<T, Builder>::refer(builder);
}

}  // namespace shmtree
