/// @file
/// Immutable lists in files, which Python programs write: `shmtree.SharedList(samples, path="samples.smt")`, or `dump`.
///
///     const shmtree::SharedList samples = shmtree::SharedList::load("samples.smt").value();
///     for (const shmtree::Item& sample : samples) use(sample["image"].view());
///     shmtree::Item last = samples.at(samples.size() - 1).value();
///
/// The file is mapped, and only the items that you access are read, so the file may be larger than the memory. Arrays
/// are read-only views of the file, and keep it mapped. The file may be replaced meanwhile, but must not be shortened:
/// the kernel kills a process that reads the missing part (SIGBUS).
///
/// Ownership: a SharedList is a handle, and copies refer to the same list. Thread safety: a SharedList is immutable,
/// and any number of threads may use it. Use an iterator in one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "shmtree/base/result.h"
#include "shmtree/item.h"

namespace shmtree {

namespace shared_list {
class ListReader;
}  // namespace shared_list

/// A list in a file. A moved-from list is empty.
class SharedList {
 public:
  /// Iterates over the items.
  class Iterator;

  /// Maps a list.
  /// - kNotFound: there is no such file.
  /// - kOs: the file cannot be read or mapped, for instance because it is not a regular file.
  /// - kCorrupt: the file is not a list, or is truncated.
  /// - kIncompatible: another version of the format wrote the file.
  static Result<SharedList> load(const std::string& path);

  /// Makes an empty list.
  SharedList() noexcept = default;

  /// Returns the number of items.
  std::uint64_t size() const noexcept;
  /// Returns the size of the file in bytes.
  std::uint64_t bytes() const noexcept;

  /// Decodes an item. Its arrays are read-only views that keep the file mapped. kInvalid: `number` is not below size().
  /// kCorrupt: the bytes of the item are invalid. kIncompatible: another version of the format wrote it.
  Result<Item> at(std::uint64_t number) const;
  /// Returns the encoded item, for put_frame(). It keeps the file mapped. Errors are those of at().
  Result<Held<std::span<const std::byte>>> frame(std::uint64_t number) const;

  /// Iterates over the items. Reading an item throws BadResult with the errors of at().
  Iterator begin() const noexcept;
  /// Returns the end of the iteration.
  Iterator end() const noexcept;

 private:
  explicit SharedList(std::shared_ptr<const shared_list::ListReader> reader) noexcept : reader_(std::move(reader)) {}
  std::shared_ptr<const shared_list::ListReader> reader_{};
};

/// An input iterator, which decodes an item when it is dereferenced.
class SharedList::Iterator {
 public:
  using value_type = Item;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = void;
  using reference = Item;

  /// The end of an empty list.
  Iterator() noexcept = default;
  Item operator*() const { return list_.at(number_).value(); }
  Iterator& operator++() noexcept { return ++number_, *this; }
  Iterator operator++(int) noexcept {
    Iterator old = *this;
    ++number_;
    return old;
  }
  bool operator==(const Iterator& other) const noexcept { return number_ == other.number_; }

 private:
  friend class SharedList;
  Iterator(SharedList list, std::uint64_t number) noexcept : list_(std::move(list)), number_(number) {}
  SharedList list_{};
  std::uint64_t number_ = 0;
};

inline SharedList::Iterator SharedList::begin() const noexcept {
  return Iterator(*this, 0);
}
inline SharedList::Iterator SharedList::end() const noexcept {
  return Iterator(*this, size());
}

}  // namespace shmtree
