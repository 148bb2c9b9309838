// Encodes Python objects to frames.
//
//   BorrowedSession session;
//   if (!session->encode(object, options)) return nullptr;              // a Python error is set, nothing was written
//   format::FrameBuilder& builder = session->builder();                 // builder.total_bytes() is known now
//   builder.write(out);                                                 // may run without the GIL
//
// All calls need the GIL, except write() and its parts, write_metadata() and copy_buffers(). Until the session is
// returned to its pool, it keeps all memory to which the builder refers alive and in place. So the copy may run without
// the GIL, even while other threads empty the containers that were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/codec/checked_classes.h"
#include "bindings/codec/refused_object.h"
#include "bindings/codec/seen_objects.h"
#include "bindings/cpython/python_api.h"
#include "format/frame_builder.h"
#include "platform/flat_table.h"

namespace shmtree::endpoint {
class MessageTransfers;
}
namespace shmtree::python {

class LoanBook;

struct EncodeOptions {
  bool allow_pickle = true;
  bool for_channel = false;  // reduce like multiprocessing's queues: descriptors, connections, locks
  // If true, each array arrives as the receiver's own: writable, on separate memory, and as one object if it was one.
  // Tensors that share a storage still share it, as torch requires.
  bool independent = false;
  bool portable = false;      // raise NotPortable for values that depend on this machine
  LoanBook* loans = nullptr;  // decides for each array on a ViewOwner if it goes by reference
  // Records the ends in the message, which are then sent as handles. If null, ends are pickled.
  endpoint::MessageTransfers* transfers = nullptr;
  // Refused objects in this list are left out of the message, so that the next refused object is found. The message
  // must not be sent. Null: there are none.
  PyObject* excused = nullptr;
};

// Maps a str to its number as a name of this message, by address, because dicts of one shape share their keys. An entry
// keeps its str alive, so that the address is not reused. Entries survive across messages, which mostly have the same
// keys.
class NameCache {
 public:
  NameCache() = default;
  NameCache(const NameCache&) = delete;
  NameCache& operator=(const NameCache&) = delete;
  ~NameCache() {
    for (Entry& entry : entries_) Py_XDECREF(entry.str);
  }
  struct Entry {
    PyObject* str = nullptr;
    std::uint64_t message = 0;  // the last message with this name
    std::uint32_t number = 0;
    std::uint8_t hash = 0;  // NodeColumns::hash_of_name(), which never changes
  };
  // Returns the entry of `str`, or null.
  Entry* find(const PyObject* str) noexcept {
    Entry& entry = entries_[slot_of(str)];
    return entry.str == str ? &entry : nullptr;
  }
  bool is_in_message(const Entry& entry) const noexcept { return entry.message == message_; }
  void enter(Entry& entry, std::uint32_t number) const noexcept {
    entry.message = message_;
    entry.number = number;
  }
  // `str` is an exact str. Long ones are not entered, since the cache would keep them alive.
  void enter(PyObject* str, std::uint32_t number, std::uint8_t hash) noexcept {
    Entry& entry = entries_[slot_of(str)];
    if (entry.str != str) {
      if (PyUnicode_GET_LENGTH(str) > kLongestKept) return;
      Py_INCREF(str);
      Py_XDECREF(std::exchange(entry.str, str));
      entry.hash = hash;
    }
    enter(entry, number);
  }
  void clear() noexcept { ++message_; }

 private:
  static constexpr Py_ssize_t kLongestKept = 256;
  static constexpr std::size_t kEntries = 128;
  static std::size_t slot_of(const PyObject* str) noexcept { return platform::slot_of_address<kEntries>(str); }

  std::uint64_t message_ = 1;
  Entry entries_[kEntries];
};

// Result of encode(). kPickled: the message as a whole had to be pickled.
enum Encoded : std::uint8_t { kNotEncoded = 0, kEncoded, kPickled };

class EncodeSession {
 public:
  EncodeSession() = default;
  EncodeSession(const EncodeSession&) = delete;
  EncodeSession& operator=(const EncodeSession&) = delete;
  ~EncodeSession() { clear(); }

  // Encodes one object. Call it once, or again after clear(). Returns kNotEncoded with a Python error set: ValueError
  // for a tree deeper than 1,000, PickleRefused, or an exception of the object's own code. May run Python code, which
  // may encode with another session.
  Encoded encode(PyObject* object, const EncodeOptions& options);

  format::FrameBuilder& builder() noexcept { return builder_; }

  // --- For the walk --------------------------------------------------------------------------------------------------
  void keep(PyObject* object) {
    kept_.push_back(object);
    Py_INCREF(object);
  }
  void keep(Ref owned) {
    kept_.push_back(owned.get());
    owned.release();
  }
  SeenObjects& seen() noexcept { return seen_; }
  NameCache& names() noexcept { return names_; }
  CheckedClasses& classes() noexcept { return classes_; }
  // The refused object: it has no native kind, and pickle is not allowed. refusal.h explains it in the error.
  RefusedObject& refused() noexcept { return refused_; }
  // Returns a dict of the classes that pickle reduces by a function of the program although they have a native kind.
  // Null: there are none.
  PyObject* reduced() const noexcept { return reduced_.get(); }

  // Returns the key of `zone` if it is the zone that was sent last, else null. The key of a zone never changes.
  PyObject* known_zone_key(const PyObject* zone) const noexcept {
    return zone == zone_.get() ? zone_key_.get() : nullptr;
  }
  void set_known_zone(PyObject* zone, PyObject* key) {
    zone_ = Ref::borrow(zone);
    zone_key_ = Ref::borrow(key);
  }

  // Drops all state of the last message. May run destructors, and so Python code.
  void clear();

 private:
  Encoded walk(PyObject* object, const EncodeOptions& options);
  void start_over(const EncodeOptions& options);

  format::FrameBuilder builder_;
  std::vector<PyObject*> kept_;
  SeenObjects seen_;
  NameCache names_;
  CheckedClasses classes_;
  RefusedObject refused_;
  Ref reduced_{};
  Ref zone_{}, zone_key_{};
};

// Borrows a session from a small pool until the end of the scope. Construct and destroy it with the GIL held.
class BorrowedSession {
 public:
  BorrowedSession();
  ~BorrowedSession();
  BorrowedSession(const BorrowedSession&) = delete;
  BorrowedSession& operator=(const BorrowedSession&) = delete;
  EncodeSession* operator->() noexcept { return session_; }
  EncodeSession& operator*() noexcept { return *session_; }

 private:
  EncodeSession* session_;
};

}  // namespace shmtree::python
