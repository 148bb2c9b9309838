// encoder.h and encode.h list the invariants: which calls run user code, and which references are kept meanwhile.
#include "bindings/codec/encode.h"

#include "bindings/codec/encoder.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/codec/portable.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/objects/arena_arrays.h"
#include "endpoint/message_transfers.h"
#include "format/grammar.h"

namespace shmtree::python {
namespace {

Pool<EncodeSession> session_pool;

}  // namespace

BorrowedSession::BorrowedSession() : session_(session_pool.take()) {}

BorrowedSession::~BorrowedSession() {
  session_->clear();
  session_pool.give_back(session_);
}

void EncodeSession::clear() {
  builder_.clear();
  seen_.clear();
  names_.clear();
  classes_.clear();
  // A destructor may run any code, even code that makes this vector grow again.
  while (!kept_.empty()) {
    PyObject* object = kept_.back();
    kept_.pop_back();
    Py_DECREF(object);
  }
}

Encoded EncodeSession::walk(PyObject* object, const EncodeOptions& options) {
  refused_.clear();
  // Without pickles, there are no reducers either: a value with a native kind is sent as such.
  reduced_ = options.allow_pickle ? program_reducers(options) : Ref();
  for (const bool careful : {false, true}) {
    Encoder encoder(*this, options, careful);
    if (encoder.child(object)) return kEncoded;
    if (!encoder.wants_care() && !encoder.wants_pickle()) return kNotEncoded;
    start_over(options);
    if (encoder.wants_pickle()) break;
  }
  return encode_pickle(*this, object, options) ? kPickled : kNotEncoded;
}

void EncodeSession::start_over(const EncodeOptions& options) {
  clear();
  if (options.loans) options.loans->start_over();
  if (options.transfers) options.transfers->take_back();
}

namespace {

// Calls Python code that adds the path of the value that cannot be sent to the current exception.
[[gnu::cold]] void explain_unsendable(PyObject* object) {
  if (!PyErr_Occurred() || !is_ordinary_exception()) return;
  if (PyErr_ExceptionMatches(error_types().error) && !PyErr_ExceptionMatches(error_types().not_portable)) return;
  Ref exception = take_exception();
  const Ref added(call_python(package().explain_unsendable, exception.get(), object));
  // An ordinary error in that code must not hide the original exception.
  if (clear_ordinary_exception()) set_exception(std::move(exception));
}

}  // namespace

Encoded EncodeSession::encode(PyObject* object, const EncodeOptions& options) {
  const Encoded how = [&] {
    const PortableScope scope(options.portable);
    return walk(object, options);
  }();
  if (how == kNotEncoded) {
    explain_unsendable(object);
    return kNotEncoded;
  }
  const Status finished = builder_.finish();
  if (finished.ok()) [[likely]]
    return how;
  raise(finished.error());
  return kNotEncoded;
}

// --- Walk ------------------------------------------------------------------------------------------------------------

bool Encoder::node(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type == &PyUnicode_Type) return text(object);
  if (type == &PyFloat_Type) return out.add_float_node(PyFloat_AS_DOUBLE(object)), true;
  if (type == &PyLong_Type) return integer(object);
  if (type == &PyArray_Type) return is_reduced(type) ? needs_pickle(object) : array(as_array(object));
  if (type == &PyDict_Type) return dict(object);
  if (type == &PyBool_Type) return out.add_bool_node(object == Py_True), true;
  if (object == Py_None) return out.add_none_node(), true;
  if (type == &PyList_Type) return list(object);
  if (type == &PyTuple_Type) return tuple(object);
  if (type == &PyBytes_Type) {
    if (out.is_long(static_cast<std::size_t>(PyBytes_GET_SIZE(object)))) keep(object);
    out.add_bytes_node(PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object)));
    return true;
  }
  if (type == &PyByteArray_Type) return bytearray(object);
  return by_class(object);
}

bool Encoder::by_class(PyObject* value) {
  if (is_reduced(Py_TYPE(value))) [[unlikely]]
    return needs_pickle(value);
  const ClassInfo* info = class_info(Py_TYPE(value));
  if (!info) return false;
  // A class without a guard is one of CPython's own, which programs cannot replace.
  if (info->guard && !session_.classes().knows(info)) return by_unchecked_class(value, info);
  return info->encode(*this, value, *info);
}

bool Encoder::by_unchecked_class(PyObject* value, const ClassInfo* cached) {
  const ClassInfo* info = current_class_info(cached);
  if (!info) return false;
  if (info->shape != ClassShape::kOther) {
    const ByName how = how_by_name(*info, options_.for_channel);
    if (how == ByName::kOtherClass && !options_.allow_pickle) {
      session_.refused().set(value);
      PyErr_Format(error_types().pickle_refused,
                   "An object would have to be pickled, because the name '%.500s' now refers to another class, but "
                   "allow_pickle is False",
                   info->name.c_str());
      return false;
    }
    if (how != ByName::kYes) return how != ByName::kError && needs_pickle(value);
  }
  session_.classes().enter(info);
  return info->encode(*this, value, *info);
}

bool Encoder::integer(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow) [[unlikely]]
    return encode_big_int(*this, value);
  out.add_int_node(number);
  return true;
}

bool Encoder::text(PyObject* str) {
  if (!make_ready(str)) return false;
  if (PyUnicode_IS_ASCII(str)) [[likely]] {
    const auto length = static_cast<std::size_t>(PyUnicode_GET_LENGTH(str));
    if (out.is_long(length)) [[unlikely]]
      keep(str);
    out.add_str_node(static_cast<const char*>(PyUnicode_DATA(str)), length);
    return true;
  }
  Ref bytes(PyUnicode_AsEncodedString(str, "utf-8", "surrogatepass"));
  if (!bytes) return false;
  const auto length = static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()));
  const bool referred_to = out.is_long(length);
  out.add_str_node(PyBytes_AS_STRING(bytes.get()), length);
  if (referred_to) keep(std::move(bytes));
  return true;
}

bool Encoder::string(PyObject* str) {
  Ref bytes(PyUnicode_AsEncodedString(str, "utf-8", "surrogatepass"));
  if (!bytes) return false;
  out.add_string(PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get())));
  return true;
}

bool Encoder::bytearray(PyObject* value) {
  return once(value, [this, value] { return bytearray_node(value); });
}

bool Encoder::bytearray_node(PyObject* value) {
  const CriticalSection alone(value);
  const auto size = static_cast<std::size_t>(PyByteArray_GET_SIZE(value));
  if (out.is_long(size)) {
    Ref pinned(PyMemoryView_FromObject(value));  // prevents a resize
    if (!pinned) return false;
    keep(std::move(pinned));
  }
  out.add_text_node(Kind::kByteArray, Kind::kLongByteArray, PyByteArray_AS_STRING(value), size);
  return true;
}

namespace {

std::string_view text_of(PyObject* ascii) noexcept {
  return {static_cast<const char*>(PyUnicode_DATA(ascii)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(ascii))};
}

}  // namespace

// Appends the name of a key that an earlier message had. May return false for some of these keys.
[[gnu::always_inline]] inline bool Encoder::known_name(PyObject* str) {
  NameCache& names = session_.names();
  NameCache::Entry* const entry = names.find(str);
  if (!entry) return false;
  if (names.is_in_message(*entry)) {
    out.add_known_name(entry->number);
    return true;
  }
  if (!PyUnicode_IS_ASCII(str)) return false;
  names.enter(*entry, out.add_name(text_of(str), entry->hash));
  return true;
}

bool Encoder::try_name(PyObject* str) {
  return known_name(str) || new_name(str);
}

bool Encoder::new_name(PyObject* str) {
  // A character has at most four bytes.
  constexpr Py_ssize_t kSurelyShort = kMaxNameBytes / 4;
  if (Py_TYPE(str) != &PyUnicode_Type || !make_ready(str) || PyUnicode_GET_LENGTH(str) > kSurelyShort) {
    return false;
  }
  Ref bytes;
  std::string_view text;
  if (PyUnicode_IS_ASCII(str)) [[likely]] {
    text = text_of(str);
  } else {
    bytes = Ref(PyUnicode_AsEncodedString(str, "utf-8", "surrogatepass"));
    if (!bytes) return false;
    text = {PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()))};
  }
  const std::uint8_t hash = format::NodeColumns::hash_of_name(text);
  session_.names().enter(str, out.add_name(text, hash), hash);
  return true;
}

// --- Containers ------------------------------------------------------------------------------------------------------

namespace {

bool may_be_name(PyObject* key) noexcept {
  return Py_TYPE(key) == &PyUnicode_Type && PyUnicode_GET_LENGTH(key) <= Py_ssize_t{kMaxNameBytes / 4};
}

bool has_only_names(PyObject* dict) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (!may_be_name(key)) return false;
  }
  return true;
}

}  // namespace

bool Encoder::dict(PyObject* value) {
  return once(value, [this, value] { return dict_node(value); });
}

bool Encoder::dict_node(PyObject* value) {
  if (!enter()) return false;
  const CriticalSection alone(value);
  PyObject *key = nullptr, *item = nullptr;
  Py_ssize_t position = 0, sent = 0;
  int more = PyDict_Next(value, &position, &key, &item);
  // Nearly always, all keys are of the same type as the first.
  if (more != 0 && !(careful_ ? has_only_names(value) : may_be_name(key))) {
    out.add_kind(Kind::kDict);
    return pairs(value) && leave();
  }
  const Py_ssize_t count = PyDict_GET_SIZE(value);
  out.begin_node(Kind::kStrDict, count);
  for (; more != 0; more = PyDict_Next(value, &position, &key, &item)) {
    if (sent == count) return changed_while_sent(value);
    if (!known_name(key) && !new_name(key)) return unfit_key(value);
    if (!child(item)) return at_entry(value, sent);
    ++sent;
  }
  if (sent != count || PyDict_GET_SIZE(value) != count) return changed_while_sent(value);
  return leave();
}

bool Encoder::unfit_key(PyObject* dict) {
  if (PyErr_Occurred()) return false;
  if (careful_) return changed_while_sent(dict);
  wants_care_ = true;
  return false;
}

bool Encoder::pairs(PyObject* dict) {
  const CriticalSection alone(dict);
  const Py_ssize_t count = PyDict_GET_SIZE(dict);
  out.add_length(static_cast<std::size_t>(count));
  PyObject *key = nullptr, *item = nullptr;
  Py_ssize_t position = 0, sent = 0;
  while (PyDict_Next(dict, &position, &key, &item)) {
    if (sent == count) return changed_while_sent(dict);
    Ref held_item = Ref::borrow(item);
    if (!child(key)) return at_key_itself(sent);
    if (!node(item)) return at_entry(dict, sent);
    ++sent;
  }
  if (sent != count || PyDict_GET_SIZE(dict) != count) return changed_while_sent(dict);
  return true;
}

bool Encoder::list(PyObject* value) {
  return once(value, [this, value] { return list_node(value); });
}

bool Encoder::list_node(PyObject* value) {
  if (!enter()) return false;
  const CriticalSection alone(value);
  if (number_list(value)) return leave();
  const Py_ssize_t count = PyList_GET_SIZE(value);
  out.begin_node(Kind::kList, count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyList_GET_SIZE(value) != count) return changed_while_sent(value);
    if (!child(PyList_GET_ITEM(value, i))) return at_index(i);
  }
  if (PyList_GET_SIZE(value) != count) return changed_while_sent(value);
  return leave();
}

bool Encoder::number_list(PyObject* value) {
  constexpr Py_ssize_t kWorthTrying = 4;
  const Py_ssize_t count = PyList_GET_SIZE(value);
  if (count < kWorthTrying) return false;
  const PyTypeObject* type = Py_TYPE(PyList_GET_ITEM(value, 0));
  if (type != &PyFloat_Type && type != &PyLong_Type) return false;
  for (Py_ssize_t i = 1; i < count; ++i) {
    if (Py_TYPE(PyList_GET_ITEM(value, i)) != type) return false;
  }
  if (type == &PyFloat_Type) {
    out.begin_node(Kind::kFloatList, count);
    for (Py_ssize_t i = 0; i < count; ++i) out.add_float(PyFloat_AS_DOUBLE(PyList_GET_ITEM(value, i)));
    return true;
  }
  const format::FrameBuilder::Mark mark = out.mark();
  out.begin_node(Kind::kIntList, count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(PyList_GET_ITEM(value, i), &overflow);
    if (overflow) {
      out.rewind(mark);
      return false;
    }
    out.add_int(number);
  }
  return true;
}

bool Encoder::tuple(PyObject* value) {
  if (PyTuple_GET_SIZE(value) == 0) return out.begin_node(Kind::kTuple, 0), true;  // the empty tuple is a singleton
  return once(value, [this, value] { return tuple_node(value); });
}

bool Encoder::tuple_node(PyObject* value) {
  if (!enter()) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(value);
  out.begin_node(Kind::kTuple, count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!child(PyTuple_GET_ITEM(value, i))) return at_index(i);
  }
  return leave();
}

// --- Objects that occur again ----------------------------------------------------------------------------------------

// While a reader reads the items of a tuple, the tuple does not exist yet, so an item cannot refer to it. This applies
// to every kind that is built from its items.
bool Encoder::refer_to(PyObject* object, std::size_t number) {
  const SeenObjects::Seen& seen = session_.seen()[number];
  const Kind kind = out.kind_at(seen.position);
  if (kind == Kind::kInvalid) return true;                       // memory ran out; finish() reports it
  if (!format::has_identity(kind)) return needs_pickle(object);  // another object was sent in its place
  if (seen.is_open && (number < sealed_ || !format::has_trait(kind, format::kMadeBeforeItems))) {
    if (!options_.allow_pickle) {
      return refuse(object, "A %.200s contains itself in a way that only pickle preserves, and allow_pickle is False");
    }
    wants_pickle_ = true;
    return false;
  }
  has_references_ = true;
  out.add_reference(seen.position);
  return true;
}

// --- Giving up -------------------------------------------------------------------------------------------------------

bool Encoder::too_deep() {
  // Objects that refer to each other are as deep as the longest path through them. pickle supports deeper ones.
  if (has_references_ && options_.allow_pickle && !out.has_no_stack()) {
    wants_pickle_ = true;
    return false;
  }
  if (out.has_no_stack()) {
    PyErr_SetString(PyExc_MemoryError, "The object is nested too deeply for the stack of this thread");
    return false;
  }
  PyErr_Format(PyExc_ValueError, "The object is nested deeper than %zu levels, which is the limit", kMaxDepth);
  return false;
}

bool Encoder::needs_pickle(PyObject* object) {
  if (options_.allow_pickle) {
    wants_pickle_ = true;
    return false;
  }
  if (leaves_out(object)) return true;
  session_.refused().set(object);
  Ref name(PyObject_GetAttrString(type_object(Py_TYPE(object)), "__qualname__"));
  if (!name) return false;
  PyErr_Format(error_types().pickle_refused,
               "An object of type %U has no native kind and would have to be pickled, but allow_pickle is False",
               name.get());
  return false;
}

bool Encoder::refuse(PyObject* object, const char* format) {
  if (leaves_out(object)) return true;
  session_.refused().set(object);
  PyErr_Format(error_types().pickle_refused, format, Py_TYPE(object)->tp_name);
  return false;
}

bool Encoder::refused_inside(PyObject* object) {
  if (session_.refused()) session_.refused().set(object);
  return false;
}

bool Encoder::leaves_out(PyObject* object) noexcept {
  const Py_ssize_t count = options_.excused ? PyList_GET_SIZE(options_.excused) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyList_GET_ITEM(options_.excused, i) == object) return out.add_none_node(), true;
  }
  return false;
}

bool Encoder::at(Step::How how, Py_ssize_t number, PyObject* name) {
  session_.refused().add({how, number, Ref::borrow(name)});
  return false;
}

bool Encoder::at_entry(PyObject* dict, Py_ssize_t number) {
  PyObject *key = nullptr, *item = nullptr;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i <= number; ++i) {
    if (!PyDict_Next(dict, &position, &key, &item)) return false;
  }
  return at_key(key);
}

bool changed_while_sent(PyObject* container) {
  PyErr_Format(PyExc_RuntimeError, "A %.200s changed while it was being sent", Py_TYPE(container)->tp_name);
  return false;
}

}  // namespace shmtree::python
