/// @file
/// Messages that consist of bytes only: byte arrays, and structs that can be copied as bytes.
///
///     sender.put_struct(Pose{1, 2, 3}).value();              // copied
///     auto loan = sender.loan<Image>().value();              // filled in place
///     loan->width = 640;
///     sender.put(std::move(loan)).value();                   // empty now: a loan is put once
///
///     Pose pose = receiver.get_struct<Pose>().value();       // copied out
///     shmtree::FlatItem bytes = receiver.get_bytes().value();
///     const Image& image = bytes.as<Image>();                // in place
///
///     shmtree::TakenBytes job = receiver.take_bytes().value();   // redelivered unless acked (pair.h)
///     job.ack().value();
///     other.put(std::move(bytes)).value();                       // forwarded: often without a copy
///
/// Python sends and receives these messages as `bytes`; get() of C++ returns them as an Item. A struct is sent as its
/// bytes, including padding. Sender and receiver must use the same struct, and pointers in it have no meaning to the
/// receiver. Only the size is checked.
///
/// Ownership: a FlatItem keeps its message alive, a Loaned its memory. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "shmtree/base/held.h"
#include "shmtree/base/result.h"

namespace shmtree {

/// A struct that put_struct(), get_struct() and loan() accept.
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
using Lent = std::pair<LoanPointer, std::byte*>;  ///< The loan, and its first byte.
struct LoanAccess;
}  // namespace detail

/// The bytes of a received message, in place. They are aligned to 64 bytes.
class FlatItem {
 public:
  /// Makes an item without a message.
  FlatItem() noexcept = default;
  /// Copies refer to the same message.
  FlatItem(const FlatItem&) = default;
  /// The same.
  FlatItem& operator=(const FlatItem&) = default;
  /// A moved-from item has no bytes.
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

  /// Returns the bytes, which are valid as long as this object or a copy of it exists.
  std::span<const std::byte> bytes() const& noexcept { return bytes_; }
  /// The same for a temporary.
  Held<std::span<const std::byte>> bytes() && noexcept { return {std::exchange(bytes_, {}), std::move(hold_)}; }
  /// Returns the number of bytes.
  std::size_t size() const noexcept { return bytes_.size(); }

  /// Returns the struct in place. Throws BadResult (kInvalid) if its size differs from that of the message.
  template <FlatStruct T>
  const T& as() const& {
    if (bytes_.size() != sizeof(T)) throw BadResult(detail::other_size(bytes_.size(), sizeof(T)));
    return *std::launder(reinterpret_cast<const T*>(bytes_.data()));
  }
  /// Returns a copy of the struct, since the item is a temporary.
  template <FlatStruct T>
  T as() const&& {
    return static_cast<const FlatItem&>(*this).as<T>();
  }

 private:
  friend struct detail::FlatAccess;
  FlatItem(std::shared_ptr<const void> hold, const void* home, std::span<const std::byte> bytes) noexcept
      : hold_(std::move(hold)), home_(home), bytes_(bytes) {}
  std::shared_ptr<const void> hold_{};  ///< Shared by all objects that refer to the message.
  const void* home_ = nullptr;          ///< Memory from which the bytes can be forwarded. Null: a copy.
  std::span<const std::byte> bytes_{};
};

/// A struct in shared memory, to be filled in place and then put. See Sender::loan(). It is empty after the put, or if
/// moved from. The memory counts as used, and is freed with the loan unless it was put. In a forked child the loan
/// cannot be put and must not be written.
template <class T>
class Loaned {
 public:
  /// A moved-from loan is empty.
  Loaned(Loaned&& other) noexcept : value_(std::exchange(other.value_, nullptr)), block_(std::move(other.block_)) {}
  /// Frees the memory that this loan had.
  Loaned& operator=(Loaned&& other) noexcept {
    value_ = std::exchange(other.value_, nullptr);
    block_ = std::move(other.block_);
    return *this;
  }

  /// True if the loan is not empty.
  explicit operator bool() const noexcept { return value_ != nullptr; }
  /// Undefined if the loan is empty.
  T* operator->() const& noexcept { return value_; }
  /// The same.
  T& operator*() const& noexcept { return *value_; }
  /// Does not compile: the memory of a temporary ends with it.
  T* operator->() const&& = delete;
  /// The same.
  T& operator*() const&& = delete;

 private:
  friend struct detail::LoanAccess;
  Loaned(detail::LoanPointer block, T* value) noexcept : value_(value), block_(std::move(block)) {}
  void end() noexcept { *this = Loaned(nullptr, nullptr); }
  T* value_;
  detail::LoanPointer block_;
};

/// A loan of uninitialised bytes, aligned to 64. See Sender::loan_bytes().
template <>
class Loaned<std::byte[]> {
 public:
  /// A moved-from loan is empty.
  Loaned(Loaned&& other) noexcept : value_(std::exchange(other.value_, {})), block_(std::move(other.block_)) {}
  /// Frees the memory that this loan had.
  Loaned& operator=(Loaned&& other) noexcept {
    value_ = std::exchange(other.value_, {});
    block_ = std::move(other.block_);
    return *this;
  }

  /// True if the loan is not empty.
  explicit operator bool() const noexcept { return value_.data() != nullptr; }
  /// Returns the bytes; none if the loan is empty.
  std::span<std::byte> bytes() const& noexcept { return value_; }
  /// Does not compile: the memory of a temporary ends with it.
  std::span<std::byte> bytes() const&& = delete;

 private:
  friend struct detail::LoanAccess;
  Loaned(detail::LoanPointer block, std::span<std::byte> value) noexcept : value_(value), block_(std::move(block)) {}
  void end() noexcept { *this = Loaned(nullptr, {}); }
  std::span<std::byte> value_;
  detail::LoanPointer block_;
};
/// The result of Sender::loan_bytes().
using LoanedBytes = Loaned<std::byte[]>;

namespace detail {

/// Gives the classes that make and put loans access to them.
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
