// Codecs for sets and the containers of `collections`.
#include <limits>
#include <optional>

#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/codec/standard_class.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"

namespace shmtree::python {
namespace {

StandardClass default_dict_class("collections", "defaultdict"), counter_class("collections", "Counter"),
    deque_class("collections", "deque");

constexpr Py_hash_t kRemoved = -1;  // hash that marks the entry of a removed item; no object has this hash

// Encodes the items that the container's iterator returns. The caller has written their number.
bool items(Encoder& encoder, PyObject* container, Py_ssize_t count) {
  Ref iterator(iterator_of(container));
  if (!iterator) return false;
  for (Py_ssize_t sent = 0;; ++sent) {
    Ref item(next_of(iterator.get()));
    if (!item) {
      if (PyErr_Occurred()) return false;
      return sent == count || changed_while_sent(container);
    }
    if (sent == count) return changed_while_sent(container);
    if (!encoder.node(item.get())) return encoder.at_index(sent);
  }
}

// Reads the hash table of the set directly, because an iterator would take longer than the items. Loads the table
// pointer again for each item: encoding an item may run Python code that changes the set.
template <Kind kind>
bool set_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  if (!encoder.enter()) return false;
  const CriticalSection alone(value);
  const auto* set = reinterpret_cast<PySetObject*>(value);
  const Py_ssize_t count = PySet_GET_SIZE(value);
  encoder.out.begin_node(kind, count);
  Py_ssize_t sent = 0;
  for (Py_ssize_t i = 0; i <= set->mask; ++i) {
    const setentry entry = set->table[i];
    if (!entry.key || entry.hash == kRemoved) continue;
    if (sent == count || PySet_GET_SIZE(value) != count) return changed_while_sent(value);
    if (!encoder.child(entry.key)) return encoder.at_index(sent);
    ++sent;
  }
  if (sent != count || PySet_GET_SIZE(value) != count) return changed_while_sent(value);
  return encoder.leave();
}

// Returns 1 if the object has no attributes, 0 if it has some, which only pickle preserves, or -1 with an error.
int has_no_attributes(PyObject* object) {
  Ref attributes(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 1;
  }
  return PyDict_GET_SIZE(attributes.get()) == 0;
}

bool deque_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref bound(PyObject_GetAttrString(value, "maxlen"));
  if (!bound) return false;
  const Py_ssize_t maxlen = bound.get() == Py_None ? -1 : PyLong_AsSsize_t(bound.get());
  const Py_ssize_t count = PyObject_Size(value);
  if (count < 0 || PyErr_Occurred()) return false;
  if (!encoder.enter()) return false;
  encoder.out.begin_node(Kind::kDeque, count);
  encoder.out.add_length(static_cast<std::size_t>(maxlen) + 1);
  return items(encoder, value, count) && encoder.leave();
}

bool ordered_dict_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const int plain = has_no_attributes(value);
  if (plain <= 0) return plain == 0 && encoder.needs_pickle(value);
  if (!encoder.enter()) return false;
  const Py_ssize_t count = PyDict_GET_SIZE(value);
  encoder.out.begin_node(Kind::kOrderedDict, count);
  // Iterates over the OrderedDict itself, because the underlying dict has another order after move_to_end().
  Ref iterator(iterator_of(value));
  if (!iterator) return false;
  Py_ssize_t sent = 0;
  for (; sent <= count; ++sent) {
    Ref key(next_of(iterator.get()));
    if (!key) break;
    Ref item = item_of(value, key.get());
    if (!item) return PyErr_Occurred() ? false : changed_while_sent(value);
    if (sent == count) return changed_while_sent(value);
    if (!encoder.node(key.get())) return encoder.at_key_itself(sent);
    if (!encoder.node(item.get())) return encoder.at_key(key.get());
  }
  if (PyErr_Occurred()) return false;
  return sent == count ? encoder.leave() : changed_while_sent(value);
}

bool default_dict_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref factory(PyObject_GetAttrString(value, "default_factory"));
  if (!factory) return false;
  const std::string name = factory.get() == Py_None ? std::string() : global_name(factory.get());
  if (factory.get() != Py_None && (!is_harmless_factory(factory.get()) || !is_found_by_name(factory.get(), name))) {
    return !PyErr_Occurred() && encoder.needs_pickle(value);
  }
  if (!encoder.enter()) return false;
  encoder.out.add_kind(Kind::kDefaultDict);
  if (factory.get() == Py_None) {
    encoder.out.add_none_node();
  } else {
    encoder.out.add_kind(Kind::kGlobal);
    encoder.out.add_name(name);
  }
  return encoder.pairs(value) && encoder.leave();
}

bool counter_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const int plain = has_no_attributes(value);
  if (plain <= 0) return plain == 0 && encoder.needs_pickle(value);
  if (!encoder.enter()) return false;
  encoder.out.add_kind(Kind::kCounter);
  return encoder.pairs(value) && encoder.leave();
}

// Checks for signals more often than for other items: adding a large key, or one of many with equal hashes, may take
// long.
constexpr std::uint64_t kKeysPerSignalCheck = 256;

bool may_go_on(Decoder& decoder, std::uint64_t added) {
  return added % kKeysPerSignalCheck != kKeysPerSignalCheck - 1 || decoder.run_signal_handlers();
}

// Counts the hash of a key towards the limit of cost.h. Accepts a key without a hash, since adding that key raises.
// Returns false on failure, also if a signal handler raised while the key's __hash__ ran.
bool may_be_added(Decoder& decoder, Collisions& collisions, PyObject* key) {
  if (!collisions.is_counting()) return true;
  const Py_hash_t hash = PyObject_Hash(key);
  if (hash == -1 && !clear_ordinary_exception()) return false;
  if (collisions.allows(hash)) return true;
  return decoder.in.fail("too many keys of a dict or items of a set have the same hash"), false;
}

template <int (*set)(PyObject*, PyObject*, PyObject*), bool str_keys>
bool pairs(Decoder& decoder, PyObject* dict) {
  const std::uint64_t count = decoder.in.next_count(str_keys ? 1 : 2);
  std::optional<Collisions> collisions;  // str keys are not counted, because Python randomizes their hashes
  if constexpr (!str_keys) collisions.emplace(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!str_keys && !may_go_on(decoder, i)) return false;
    const Expansion::Before before = str_keys ? Expansion::Before{} : decoder.begin_walked();
    Ref other_key(str_keys ? nullptr : decoder.node());
    if (!str_keys && !decoder.may_be_walked(before)) return false;
    PyObject* key = str_keys ? decoder.next_key() : other_key.get();  // a str key is borrowed from the decoder
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

namespace {

template <bool str_keys>
PyObject* decode_ordered_dict(Decoder& decoder) {
  Ref dict(PyODict_New());
  if (!dict) return nullptr;
  decoder.add_container(dict.get());
  const auto fill = str_keys ? pairs<PyODict_SetItem, true> : pairs<PyODict_SetItem, false>;
  return fill(decoder, dict.get()) ? dict.release() : nullptr;
}

PyObject* decode_default_dict(Decoder& decoder) {
  const Kind kind = decoder.in.peek_kind();
  if (kind != Kind::kNone && kind != Kind::kGlobal) return decoder.in.fail("a defaultdict has no factory"), nullptr;
  Ref factory(decoder.node());
  Ref dict(factory ? decoder.corrupt_unless(PyObject_CallOneArg(default_dict_class.get(), factory.get()),
                                            "a default factory cannot be called")
                   : nullptr);
  if (!dict) return nullptr;
  decoder.add_container(dict.get());
  const Expansion::Before before = decoder.begin_walked();
  const bool filled = decode_pairs(decoder, dict.get(), false);
  return decoder.may_be_dropped(before) && filled ? dict.release() : nullptr;
}

PyObject* decode_counter(Decoder& decoder) {
  Ref dict(PyObject_CallNoArgs(counter_class.get()));
  if (!dict) return nullptr;
  decoder.add_container(dict.get());
  return decode_pairs(decoder, dict.get(), false) ? dict.release() : nullptr;
}

template <bool frozen>
PyObject* decode_set(Decoder& decoder) {
  const std::uint64_t count = decoder.in.next_count();
  Ref set(frozen ? PyFrozenSet_New(nullptr) : PySet_New(nullptr));
  if (!set) return nullptr;
  if (!frozen) decoder.add_container(set.get());
  Collisions collisions(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!may_go_on(decoder, i)) return nullptr;
    const Expansion::Before before = decoder.begin_walked();
    Ref item(decoder.node());
    if (!item || !decoder.may_be_walked(before) || !may_be_added(decoder, collisions, item.get())) return nullptr;
    // A new frozenset may be filled as long as no other code has a reference to it.
    if (PySet_Add(set.get(), item.get()) != 0) return decoder.corrupt_unless(nullptr, "an item cannot be hashed");
  }
  return set.release();
}

PyObject* decode_deque(Decoder& decoder) {
  const std::uint64_t count = decoder.in.next_count();
  const std::uint64_t bound = decoder.in.next_length();  // maxlen + 1; 0: unbounded
  Ref empty(PyTuple_New(0));
  Ref maxlen(bound == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(bound - 1));
  if (!empty || !maxlen) return nullptr;
  Ref deque(decoder.corrupt_unless(PyObject_CallFunctionObjArgs(deque_class.get(), empty.get(), maxlen.get(), nullptr),
                                   "the maxlen of a deque is out of range"));
  if (!deque) return nullptr;
  decoder.add_container(deque.get());
  Ref append(PyObject_GetAttrString(deque.get(), "append"));
  for (std::uint64_t i = 0; append && i < count; ++i) {
    if (!may_go_on(decoder, i)) return nullptr;
    Ref item(decoder.node());
    Ref done(item ? PyObject_CallOneArg(append.get(), item.get()) : nullptr);
    if (!done) return nullptr;
  }
  return append ? deque.release() : nullptr;
}

const KindCodec set_codec({{Kind::kSet, decode_set<false>}, {Kind::kFrozenSet, decode_set<true>}},
                          {{&PySet_Type, once<set_node<Kind::kSet>>},
                           {&PyFrozenSet_Type, once<set_node<Kind::kFrozenSet>>}});
const KindCodec deque_codec({{Kind::kDeque, decode_deque}}, {{"collections:deque", once<deque_node>}});
const KindCodec ordered_dict_codec({{Kind::kOrderedDict, decode_ordered_dict<false>},
                                    {Kind::kStrOrderedDict, decode_ordered_dict<true>}},
                                   {{&PyODict_Type, once<ordered_dict_node>}});
const KindCodec default_dict_codec({{Kind::kDefaultDict, decode_default_dict}},
                                   {{"collections:defaultdict", once<default_dict_node>}});
const KindCodec counter_codec({{Kind::kCounter, decode_counter}}, {{"collections:Counter", once<counter_node>}});

}  // namespace

}  // namespace shmtree::python
