// The walk that decodes one frame. Internal to the decode_*.cpp files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bindings/codec/checked_classes.h"
#include "bindings/codec/class_registry.h"
#include "bindings/codec/cost.h"
#include "bindings/codec/decode.h"
#include "bindings/codec/expansion.h"
#include "bindings/codec/global_cache.h"
#include "bindings/codec/key_cache.h"
#include "bindings/codec/kind_codec.h"
#include "format/frame_reader.h"
#include "format/references.h"

namespace shmtree::python {

// Tables of one walk, indexed by numbers in the frame. They are reused, since most messages need the same sizes.
struct DecoderTables {
  // The str of a name. Kept across messages, since the next one mostly has the same keys in the same order.
  struct Key {
    PyObject* str = nullptr;    // null if the name was not used as a key
    std::uint64_t message = 0;  // number of the last message in which this entry was used
  };
  DecoderTables() = default;
  DecoderTables(const DecoderTables&) = delete;
  DecoderTables& operator=(const DecoderTables&) = delete;
  ~DecoderTables() { drop_keys(); }
  void drop_keys() noexcept;

  KeyCache known;
  GlobalCache known_globals;
  CheckedClasses classes;
  std::uint64_t message = 0;
  bool large_keys = false;         // too large to keep
  std::vector<Key> keys;           // by number of the name
  std::vector<PyObject*> globals;  // by number of the name
  std::vector<PyObject*> dtypes;   // by number of the name
  std::vector<PyObject*> copied;   // by number of the buffer: an array that owns the buffer's copy
  std::vector<PyObject*> copied_externals;
  std::vector<PyObject*> owners;  // by number of the external block
  struct Earlier {
    PyObject* object = nullptr;
    Expansion::Extent extent{};
  };
  format::EarlierNodes<Earlier> earlier;
};

// Decodes one frame. Functions return a new reference, or null if a Python error is set or the reader has failed. The
// reader's error becomes an exception at the end of the walk.
class Decoder {
 public:
  Decoder(format::FrameReader& reader, DecodeContext& context, std::span<const std::byte> frame);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  PyObject* node();
  // Call it with a container before its items are read, because the items may refer to the container.
  void add_container(PyObject* container) {
    if (marked_ != kNotMarked) [[unlikely]]
      tables_.earlier[std::exchange(marked_, kNotMarked)].object = Py_NewRef(container);
  }
  // Call these before and after a part that Python code or a hash will walk. The second one returns false if the part
  // is too deep, or if that walk would take too long.
  Expansion::Before begin_walked() noexcept { return expansion_.begin(in.depth()); }
  bool may_be_walked(const Expansion::Before& before);
  // Ends a part that contains objects which are freed recursively. Returns false if the part is too deep for that.
  bool may_be_dropped(const Expansion::Before& before);
  // Runs the handlers of pending signals. Returns false with a Python error set if one of them raised.
  bool run_signal_handlers();
  // True if `bytes` more may be copied out of the message. Otherwise fails: nodes copy shared buffers too often.
  bool may_copy(std::uint64_t bytes);
  // Returns the bytes of a blob that the caller will copy.
  std::span<const std::byte> blob();
  // Returns the dtype with this description. Parses each description once. Each call copies a dtype that has fields.
  Ref dtype(const format::Name& description);
  // Returns the dtype with this number, or the one with that description if it is kOther. Returns null on failure.
  Ref dtype(DType code, const format::Name& description);
  // Returns `made`. If it is null because of a Python error that a damaged message can cause, such as an unhashable key
  // or a date out of range, replaces the error with CorruptMessage.
  PyObject* corrupt_unless(PyObject* object, const char* what);

  // Sets IncompatibleMessage with `text`, about the node at `position`, and returns null. Does nothing if `text` is
  // null. `cause` is the exception that becomes its __cause__, or null.
  PyObject* incompatible(std::size_t position, const Ref& text, Ref cause = Ref());
  // Records `position` if an IncompatibleMessage is already set.
  void note_incompatible(std::size_t position) noexcept;
  static constexpr std::size_t kNone = SIZE_MAX;
  std::size_t incompatible_node() const noexcept { return incompatible_node_; }
  std::span<const std::byte> frame() const noexcept { return frame_; }

  // Returns the str of the next name, borrowed from the decoder, or null on failure. Repeated names share one str.
  PyObject* next_key() {
    if (std::uint32_t index = 0; in.next_name_again(&index)) {
      const bool is_key = index < tables_.keys.size() && tables_.keys[index].message == tables_.message;
      return is_key ? tables_.keys[index].str : other_key(in.name_again(index));
    }
    if (const std::size_t index = in.names(); index < tables_.keys.size()) [[likely]] {
      DecoderTables::Key& cached = tables_.keys[index];
      if (cached.str && KeyCache::may_stay(cached.str) && in.next_name_is(KeyCache::text_of(cached.str))) [[likely]] {
        KeyCache::came_again(cached.str);
        cached.message = tables_.message;
        return cached.str;
      }
    }
    return other_key(in.next_name());
  }
  // Returns the class or function with that name, borrowed from the decoder. Raises IncompatibleMessage if pickles are
  // allowed and this process lacks it.
  PyObject* global(const format::Name& name);
  // Does the same, but leaves the ImportError or AttributeError.
  PyObject* global_or_error(const format::Name& name);
  // Returns the current description of the class, which is checked once per message. Returns null with a Python error
  // set.
  const ClassInfo* described(PyTypeObject* type) {
    const ClassInfo* cached = class_info(type);
    if (!cached || tables_.classes.knows(cached)) [[likely]]
      return cached;
    return described_again(cached);
  }

  // Decodes an array node.
  PyObject* array();
  // Returns a segment of a kCapnp as a read-only array that is aligned to 8 bytes.
  PyObject* segment();
  // Fails if two of the segments since the last call overlap.
  void end_segments();
  // Returns an array of elements that NumPy lacks, with a dtype of ml_dtypes, or a tensor if ml_dtypes is missing.
  [[gnu::cold]] PyObject* array_of_other_package(const format::ArrayInfo& info);
  // Returns the bytes of a described array as a one-dimensional array of uint8, viewed or copied like any array. If
  // `writable`, bytes that this process may not write are copied.
  PyObject* memory(const format::ArrayInfo& info, std::int64_t from, std::int64_t bytes, bool writable);

  DecodeContext& context() noexcept { return context_; }
  bool allow_pickle() const noexcept { return context_.allow_pickle; }
  // Returns the range that the elements occupy, in bytes from the start of their buffer.
  static std::pair<std::int64_t, std::int64_t> extent_of(const format::ArrayInfo& info) noexcept;

  format::FrameReader& in;

 private:
  // Condition under which an array is copied. kAny: if the copy policy says so. kWritten: also if a view would not be
  // writable. kOwn: always.
  enum class Access : std::uint8_t { kAny, kWritten, kOwn };
  // Memory for a view.
  struct Storage {
    std::byte* buffer = nullptr;  // start of the array's buffer or external range
    PyObject* base = nullptr;     // borrowed
    bool writable = false;
  };

  static constexpr std::size_t kNotMarked = SIZE_MAX;
  static constexpr std::size_t kNodesPerSignalCheck = 16'384;  // between checks for signals: a few milliseconds

  [[gnu::cold]] PyObject* marked(Kind kind);
  PyObject* marked_container(Kind kind);
  PyObject* whole(Kind kind);
  PyObject* reference();
  PyObject* other_key(const format::Name& name);
  // Unless an error is set, sets IncompatibleMessage, because no installed package has this element type.
  PyObject* no_package(DType code);
  const ClassInfo* described_again(const ClassInfo* cached);
  PyObject* container(Kind kind);
  PyObject* other(Kind kind);
  PyObject* list();
  PyObject* tuple();
  PyObject* int_list();
  PyObject* float_list();

  bool is_copied(const format::ArrayInfo& info, const std::byte* buffer) const noexcept;
  PyObject* owner_of(std::uint32_t block);
  PyObject*& copied_slot(const format::ArrayInfo& info);
  PyObject* make(const format::ArrayInfo& info, PyArray_Descr* descr, Access access = Access::kAny);
  PyObject* empty(const format::ArrayInfo& info, PyArray_Descr* descr);
  PyObject* view(const format::ArrayInfo& info, PyArray_Descr* descr, const Storage& storage);
  PyObject* copy(const format::ArrayInfo& info, PyArray_Descr* descr, const std::byte* buffer);

  DecodeContext& context_;
  const std::span<const std::byte> frame_;
  std::size_t incompatible_node_ = kNone;
  DecoderTables& tables_;
  PyObject* frame_owner_ = nullptr;
  Expansion expansion_;
  CopiedBytes copied_;
  // For each segment since the last end_segments(): number of its buffer or block, begin and end in it.
  std::vector<std::array<std::uint64_t, 3>> segments_{};
  const std::uint64_t message_bytes_;                     // size of the frame and its external blocks
  std::size_t next_signal_check_ = kNodesPerSignalCheck;  // number of the node at which signals are checked next
  std::size_t marked_ = kNotMarked;                       // number in `earlier` of the container that is being built
};

// Number of items of a long container that are decoded between two checks for signals.
constexpr std::uint64_t kItemsPerSignalCheck = 16'384;

// Functions of kinds (kind_codec.h) that more than one file calls.
PyObject* decode_str(Decoder& decoder, std::string_view text);
PyObject* new_bytes(std::span<const std::byte> run);
DecodeHandler decode_long_bytes, decode_numpy_scalar;
bool decode_pairs(Decoder& decoder, PyObject* dict, bool str_keys);
// Returns a tensor with that description. `flags`: see Kind::kTensor.
PyObject* tensor_of(Decoder& decoder, const format::ArrayInfo& info, std::uint64_t flags);
PyObject* decode_end(Decoder& decoder, const ClassInfo& info);  // decodes the rest of the node, after its class

}  // namespace shmtree::python
