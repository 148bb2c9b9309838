/// @file
/// Messages without a tree around them: runs of bytes, and structs that can be copied as bytes.
///
///     sender.put_struct(Pose{1, 2, 3}).value();              // copied
///     auto loan = sender.loan<Image>().value();              // written where it stays
///     loan->width = 640;
///     sender.put(std::move(loan)).value();                   // gone: it cannot be given twice
///
///     Pose pose = receiver.get_struct<Pose>().value();       // copied out
///     shmtree::FlatItem bytes = receiver.get_bytes().value();
///     const Image& image = bytes.as<Image>();                // where it lies
///
///     shmtree::TakenBytes job = receiver.take_bytes().value();   // comes back unless it is acknowledged (pair.h)
///     job.ack().value();
///     other.put(std::move(bytes)).value();                       // sent on, without a copy where nobody else has it
///
/// In Python such a message is `bytes`, and `bytes` that Python puts are such a message; get() of C++ makes an Item of
/// it. A struct goes as its bytes, padding included: sender and receiver must mean the same struct, and pointers in it
/// are nobody's. The size is checked, nothing else can be.
/// Ownership: a FlatItem keeps its message, a Loaned its memory. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "shmtree/result.h"

namespace shmtree {

/// What put_struct(), get_struct() and loan() take.
template <class T>
concept FlatStruct = std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> && !std::is_pointer_v<T> &&
                     !std::is_array_v<T> && std::is_same_v<T, std::remove_cv_t<T>> && alignof(T) <= 64;

namespace detail {
Error other_size(std::size_t found, std::size_t wanted);
struct LoanedBlock;
struct FlatAccess;
struct EndLoan {
  void operator()(LoanedBlock* block) const noexcept;
};
using LoanPointer = std::unique_ptr<LoanedBlock, EndLoan>;
using Lent = std::pair<LoanPointer, std::byte*>;  ///< and the first of its bytes
struct LoanAccess;
}  // namespace detail

/// The bytes of a received message, where they lie: aligned to 64.
class FlatItem {
 public:
  /// No message, and no bytes.
  FlatItem() noexcept = default;
  /// A copy refers to the same message.
  FlatItem(const FlatItem&) = default;
  /// The same.
  FlatItem& operator=(const FlatItem&) = default;
  /// What was moved from has no bytes.
  FlatItem(FlatItem&& other) noexcept
      : hold_(std::move(other.hold_)),
        home_(std::exchange(other.home_, nullptr)),
        bytes_(std::exchange(other.bytes_, {})) {}
  /// The same.
  FlatItem& operator=(FlatItem&& other) noexcept {
    bytes_ = std::exchange(other.bytes_, {});
    home_ = std::exchange(other.home_, nullptr);
    hold_ = std::move(other.hold_);
    return *this;
  }

  /// Valid as long as this, or a copy of it, lives.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// How many bytes.
  std::size_t size() const noexcept { return bytes_.size(); }

  /// The struct in place. Throws BadResult (kInvalid) when the message has another number of bytes.
  template <FlatStruct T>
  const T& as() const& {
    if (bytes_.size() != sizeof(T)) throw BadResult(detail::other_size(bytes_.size(), sizeof(T)));
    return *std::launder(reinterpret_cast<const T*>(bytes_.data()));
  }
  /// A copy of the struct, of an item that is a temporary.
  template <FlatStruct T>
  T as() const&& {
    return static_cast<const FlatItem&>(*this).as<T>();
  }

 private:
  friend struct detail::FlatAccess;
  FlatItem(std::shared_ptr<const void> hold, const void* home, std::span<const std::byte> bytes) noexcept
      : hold_(std::move(hold)), home_(home), bytes_(bytes) {}
  std::shared_ptr<const void> hold_{};  ///< shared by all that refer to the message
  const void* home_ = nullptr;          ///< what it lies in and could be sent on from; null: a copy
  std::span<const std::byte> bytes_{};
};

/// A struct in shared memory, to be written and then put: Sender::loan(). Empty once it was put, or moved from. The
/// memory counts as used, and goes back with the loan unless it was put. In a forked child it cannot be put, and is not
/// to be written.
template <class T>
class Loaned {
 public:
  /// What was moved from is empty.
  Loaned(Loaned&& other) noexcept : value_(std::exchange(other.value_, nullptr)), block_(std::move(other.block_)) {}
  /// The same; the memory that it had goes back.
  Loaned& operator=(Loaned&& other) noexcept {
    value_ = std::exchange(other.value_, nullptr);
    block_ = std::move(other.block_);
    return *this;
  }

  /// Whether it has memory.
  explicit operator bool() const noexcept { return value_ != nullptr; }
  /// Undefined when it is empty.
  T* operator->() const noexcept { return value_; }
  /// The same.
  T& operator*() const noexcept { return *value_; }

 private:
  friend struct detail::LoanAccess;
  Loaned(detail::LoanPointer block, T* value) noexcept : value_(value), block_(std::move(block)) {}
  void end() noexcept { *this = Loaned(nullptr, nullptr); }
  T* value_;
  detail::LoanPointer block_;
};

/// The same of a run of bytes, aligned to 64 and not initialised: Sender::loan_bytes().
template <>
class Loaned<std::byte[]> {
 public:
  /// What was moved from is empty.
  Loaned(Loaned&& other) noexcept : value_(std::exchange(other.value_, {})), block_(std::move(other.block_)) {}
  /// The same; the memory that it had goes back.
  Loaned& operator=(Loaned&& other) noexcept {
    value_ = std::exchange(other.value_, {});
    block_ = std::move(other.block_);
    return *this;
  }

  /// Whether it has memory.
  explicit operator bool() const noexcept { return value_.data() != nullptr; }
  /// No bytes when it is empty.
  std::span<std::byte> bytes() const noexcept { return value_; }

 private:
  friend struct detail::LoanAccess;
  Loaned(detail::LoanPointer block, std::span<std::byte> value) noexcept : value_(value), block_(std::move(block)) {}
  void end() noexcept { *this = Loaned(nullptr, {}); }
  std::span<std::byte> value_;
  detail::LoanPointer block_;
};
/// What Sender::loan_bytes() returns.
using LoanedBytes = Loaned<std::byte[]>;

namespace detail {

/// What loans are to those who make and put them.
struct LoanAccess {
  template <FlatStruct T>
  static Result<Loaned<T>> make(Result<Lent> lent) {
    if (!lent) return std::move(lent).error();
    T* value = new (lent->second) T();
    return Loaned<T>(std::move(lent->first), value);
  }
  static Result<LoanedBytes> make_bytes(Result<Lent> lent, std::size_t count) {
    if (!lent) return std::move(lent).error();
    return LoanedBytes(std::move(lent->first), {lent->second, count});
  }
  template <class T, class Put>
  static Result<std::uint64_t> put(Loaned<T>& loan, Put put_block) {
    Result<std::uint64_t> ticket = put_block(loan.block_.get());
    if (ticket) loan.end();
    return ticket;
  }
};

}  // namespace detail

}  // namespace shmtree
