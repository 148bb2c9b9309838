#include <optional>

#include "bindings/codec/decoder.h"
#include "bindings/codec/standard_classes.h"
#include "bindings/cpython/errors.h"

namespace shmtree::python {

namespace {

// Signals are checked more often for keys, since adding a large key, or one of many with equal hashes, may take long.
constexpr std::uint64_t kKeysPerLook = 256;

bool may_go_on(Decoder& decoder, std::uint64_t added) {
  return added % kKeysPerLook != kKeysPerLook - 1 || decoder.see_signals();
}

// Counts the hash of a key. A key without a hash passes: adding it raises. False on failure, also if a signal handler
// raised while the key's __hash__ ran.
bool may_be_added(Decoder& decoder, Collisions& collisions, PyObject* key) {
  if (!collisions.is_counting()) return true;
  const Py_hash_t hash = PyObject_Hash(key);
  if (hash == -1 && !clear_ordinary_exception()) return false;
  if (collisions.allows(hash)) return true;
  return decoder.in.fail("too many keys of a dict, or items of a set, have equal hashes"), false;
}

template <int (*set)(PyObject*, PyObject*, PyObject*), bool str_keys>
bool pairs(Decoder& decoder, PyObject* dict) {
  const std::uint64_t count = decoder.in.next_count(str_keys ? 1 : 2);
  std::optional<Collisions> collisions;  // not needed for str keys, whose hashes are as good as random
  if constexpr (!str_keys) collisions.emplace(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!str_keys && !may_go_on(decoder, i)) return false;
    const Expansion::Before before = str_keys ? Expansion::Before{} : decoder.begin_walked();
    Ref other_key(str_keys ? nullptr : decoder.node());
    if (!str_keys && !decoder.may_be_walked(before)) return false;
    PyObject* key = str_keys ? decoder.next_key() : other_key.get();  // the decoder's own, so it stays
    Ref value(key ? decoder.node() : nullptr);
    if (!value || (!str_keys && !may_be_added(decoder, *collisions, key))) return false;
    if (set(dict, key, value.get()) != 0) return decoder.corrupt_unless(nullptr, "a key cannot be hashed"), false;
  }
  return true;
}

}  // namespace

bool decode_pairs(Decoder& decoder, PyObject* dict, bool str_keys) {
  return str_keys ? pairs<PyDict_SetItem, true>(decoder, dict) : pairs<PyDict_SetItem, false>(decoder, dict);
}

PyObject* decode_ordered_dict(Decoder& decoder, bool str_keys) {
  Ref dict(PyODict_New());
  if (!dict) return nullptr;
  decoder.is_there(dict.get());
  const auto fill = str_keys ? pairs<PyODict_SetItem, true> : pairs<PyODict_SetItem, false>;
  return fill(decoder, dict.get()) ? dict.release() : nullptr;
}

PyObject* decode_default_dict(Decoder& decoder) {
  const Kind kind = decoder.in.peek_kind();
  if (kind != Kind::kNone && kind != Kind::kGlobal) return decoder.in.fail("a defaultdict has no factory"), nullptr;
  Ref factory(decoder.node());
  Ref dict(factory
               ? decoder.corrupt_unless(PyObject_CallOneArg(standard_class(StandardClass::kDefaultDict), factory.get()),
                                        "a default factory cannot be called")
               : nullptr);
  if (!dict) return nullptr;
  decoder.is_there(dict.get());
  const Expansion::Before before = decoder.begin_walked();
  const bool filled = decode_pairs(decoder, dict.get(), false);
  return decoder.may_be_dropped(before) && filled ? dict.release() : nullptr;
}

PyObject* decode_counter(Decoder& decoder) {
  Ref dict(PyObject_CallNoArgs(standard_class(StandardClass::kCounter)));
  if (!dict) return nullptr;
  decoder.is_there(dict.get());
  return decode_pairs(decoder, dict.get(), false) ? dict.release() : nullptr;
}

PyObject* decode_set(Decoder& decoder, bool frozen) {
  const std::uint64_t count = decoder.in.next_count();
  Ref set(frozen ? PyFrozenSet_New(nullptr) : PySet_New(nullptr));
  if (!set) return nullptr;
  if (!frozen) decoder.is_there(set.get());
  Collisions collisions(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!may_go_on(decoder, i)) return nullptr;
    const Expansion::Before before = decoder.begin_walked();
    Ref item(decoder.node());
    if (!item || !decoder.may_be_walked(before) || !may_be_added(decoder, collisions, item.get())) return nullptr;
    // A frozenset that nobody else has seen may still be filled.
    if (PySet_Add(set.get(), item.get()) != 0) return decoder.corrupt_unless(nullptr, "an item cannot be hashed");
  }
  return set.release();
}

PyObject* decode_deque(Decoder& decoder) {
  const std::uint64_t count = decoder.in.next_count();
  const std::uint64_t bound = decoder.in.next_length();  // maxlen + 1, 0 for none
  Ref empty(PyTuple_New(0));
  Ref maxlen(bound == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(bound - 1));
  if (!empty || !maxlen) return nullptr;
  Ref deque(decoder.corrupt_unless(
      PyObject_CallFunctionObjArgs(standard_class(StandardClass::kDeque), empty.get(), maxlen.get(), nullptr),
      "a deque cannot be so long"));
  if (!deque) return nullptr;
  decoder.is_there(deque.get());
  Ref append(PyObject_GetAttrString(deque.get(), "append"));
  for (std::uint64_t i = 0; append && i < count; ++i) {
    if (!may_go_on(decoder, i)) return nullptr;
    Ref item(decoder.node());
    Ref done(item ? PyObject_CallOneArg(append.get(), item.get()) : nullptr);
    if (!done) return nullptr;
  }
  return append ? deque.release() : nullptr;
}

}  // namespace shmtree::python
