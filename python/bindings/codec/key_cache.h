// Cache of recent dict keys, so that a key that is in every message is made once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "bindings/cpython/python_api.h"
#include "platform/flat_table.h"

namespace shmtree::python {

// Direct-mapped by a hash of the bytes. A key is interned when it comes for the second time, since the program then
// probably has it as a literal, and a lookup with that literal compares one pointer. Keys that come only once, such as
// ids, are not interned. At most kMaxInterned keys are, since some versions of Python keep interned strings forever.
// Used by one walk at a time.
class KeyCache {
 public:
  KeyCache() = default;
  KeyCache(const KeyCache&) = delete;
  KeyCache& operator=(const KeyCache&) = delete;
  ~KeyCache() {
    for (PyObject* slot : slots_) Py_XDECREF(slot);
  }

  // Returns the str of UTF-8 bytes as a new reference, or null with a Python error set.
  PyObject* get(std::string_view text) {
    if (text.size() > kLongest) return decode(text);
    PyObject*& slot = slots_[hash(text) % kSlots];
    if (slot && text_of(slot) == text) [[likely]] {
      came_again(slot);
      Py_INCREF(slot);
      return slot;
    }
    PyObject* key = decode(text);
    if (key && PyUnicode_IS_ASCII(key)) {
      Py_INCREF(key);
      Py_XDECREF(std::exchange(slot, key));
    }
    return key;
  }

  // True if a str from get() may be reused for the bytes of text_of(), even if another str has its slot by now. Call
  // came_again() at each reuse.
  static bool may_stay(PyObject* str) noexcept {
    return PyUnicode_IS_ASCII(str) && static_cast<std::size_t>(PyUnicode_GET_LENGTH(str)) <= kLongest;
  }
  static void came_again(PyObject*& str) noexcept {
    if (!PyUnicode_CHECK_INTERNED(str)) [[unlikely]]
      intern(str);
  }
  static std::string_view text_of(PyObject* ascii) noexcept {
    return {static_cast<const char*>(PyUnicode_DATA(ascii)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(ascii))};
  }

  static constexpr std::size_t kLongest = 64;

 private:
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::uint32_t kMaxInterned = 8192;  // in the whole process

  [[gnu::noinline]] static void intern(PyObject*& str) noexcept {
    static std::atomic<std::uint32_t> interned{0};
    if (interned.load(std::memory_order_relaxed) >= kMaxInterned) return;
    interned.fetch_add(1, std::memory_order_relaxed);
    PyUnicode_InternInPlace(&str);
  }

  static PyObject* decode(std::string_view text) {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  }

  // Hashes all bytes with loads of fixed size, which may overlap.
  static std::uint64_t hash(std::string_view text) noexcept {
    const char* p = text.data();
    const std::size_t size = text.size();
    std::uint64_t h = size;
    if (size >= 8) {
      for (std::size_t at = 0; at + 8 <= size; at += 8) h = platform::mixed(h ^ load<std::uint64_t>(p + at));
      h ^= load<std::uint64_t>(p + size - 8);
    } else if (size >= 4) {
      h ^= std::uint64_t{load<std::uint32_t>(p)} << 32 | load<std::uint32_t>(p + size - 4);
    } else if (size > 0) {
      const auto byte = [p](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])}; };
      h ^= byte(0) << 8 | byte(size / 2) << 16 | byte(size - 1) << 24;
    }
    h = platform::mixed(h);
    return platform::mixed(h ^ h >> 32) >> 40;
  }

  template <class T>
  static T load(const char* p) noexcept {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }

  PyObject* slots_[kSlots] = {};
};

}  // namespace shmtree::python
