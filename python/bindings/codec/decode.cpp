#include "bindings/codec/decode.h"

#include <algorithm>

#include "bindings/codec/decoder.h"
#include "bindings/codec/dtypes.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "format/flat.h"
#include "format/grammar.h"
#include "platform/text.h"

namespace shmtree::python {
namespace {

void drop(std::vector<PyObject*>& objects) noexcept {
  // Removes each object from the table before it drops the reference, because the destructor may run any code.
  while (!objects.empty()) {
    PyObject* object = objects.back();
    objects.pop_back();
    Py_XDECREF(object);
  }
}

// Returns the object at an index that the reader has checked. Grows `objects` if needed, mostly by one, since indices
// usually come in order.
template <class Object>
Object& at(std::vector<Object>& objects, std::size_t index) {
  if (index == objects.size()) return objects.emplace_back();
  if (index > objects.size()) objects.resize(index + 1);
  return objects[index];
}

Pool<DecoderTables> table_pool;

constexpr std::size_t kKeptKeys = 256;

std::uint64_t message_bytes(const format::FrameReader& reader, std::span<const ExternalBlock> externals) noexcept {
  std::uint64_t bytes = reader.total_bytes();
  for (const ExternalBlock& block : externals) bytes += block.bytes.size();
  return bytes;
}

}  // namespace

void DecoderTables::drop_keys() noexcept {
  for (const Key& key : keys) Py_XDECREF(key.str);  // exact strs: their destructors run no Python code
  keys.clear();
  large_keys = false;
}

Decoder::Decoder(format::FrameReader& reader, DecodeContext& context, std::span<const std::byte> frame)
    : in(reader),
      context_(context),
      frame_(frame),
      tables_(*table_pool.take()),
      message_bytes_(message_bytes(reader, context.externals)) {
  ++tables_.message;
  tables_.classes.clear();
}

Decoder::~Decoder() {
  if (tables_.large_keys || tables_.keys.size() > kKeptKeys) tables_.drop_keys();
  drop(tables_.globals);
  drop(tables_.dtypes);
  drop(tables_.copied);
  drop(tables_.copied_externals);
  drop(tables_.owners);
  while (!tables_.earlier.empty()) Py_XDECREF(tables_.earlier.take_last().object);
  Py_XDECREF(frame_owner_);
  table_pool.give_back(&tables_);
}

PyObject* Decoder::other_key(const format::Name& name) {
  if (name.index < tables_.keys.size() && tables_.keys[name.index].message == tables_.message) {
    return tables_.keys[name.index].str;
  }
  Ref name_object(corrupt_unless(tables_.known.get(name.text), "a name is not UTF-8"));
  if (!name_object) return nullptr;
  DecoderTables::Key& kept = at(tables_.keys, name.index);
  Py_XDECREF(std::exchange(kept.str, name_object.release()));
  kept.message = tables_.message;
  tables_.large_keys |= name.text.size() > KeyCache::kLongest;
  return kept.str;
}

PyObject* Decoder::global(const format::Name& name) {
  PyObject* found = global_or_error(name);
  if (found || in.failed() || !context_.allow_pickle) return found;
  if (!is_failed_lookup()) return nullptr;
  const bool has_no_module = PyErr_ExceptionMatches(PyExc_ImportError);
  Ref cause = take_exception();
  const std::size_t colon = name.text.find(':');
  const std::string module = platform::printable(name.text.substr(0, colon));
  const std::string object = platform::printable(name.text.substr(colon + 1));
  const char* format = has_no_module
                           ? "The message needs '%.500s' of module '%.500s', which cannot be imported here (%.500S)"
                           : "The message needs '%.500s', which module '%.500s' does not have here";
  const Ref text(PyUnicode_FromFormat(format, object.c_str(), module.c_str(), cause.get()));
  return incompatible(in.position(), text, std::move(cause));
}

PyObject* Decoder::global_or_error(const format::Name& name) {
  if (in.failed()) return nullptr;
  if (name.index < tables_.globals.size() && tables_.globals[name.index]) return tables_.globals[name.index];
  Ref found = tables_.known_globals.find(name.text);
  if (!found && !PyErr_Occurred()) {
    found = resolve_global(name.text, context_.allow_pickle);
    if (found && !tables_.known_globals.keep(name.text, found.get())) return nullptr;
  }
  if (!found) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) corrupt_unless(nullptr, "a name is not UTF-8");
    return nullptr;
  }
  // Looks up the slot only after the import, since the import may have run another decoder and so moved the table.
  PyObject*& kept = at(tables_.globals, name.index);
  return kept = found.release();
}

Ref Decoder::dtype(const format::Name& description) {
  if (in.failed()) return Ref();
  PyObject*& kept = at(tables_.dtypes, description.index);
  if (!kept) kept = parse_dtype(description.text).release();  // may run another decoder
  return kept ? separate_dtype(kept) : Ref();
}

bool Decoder::run_signal_handlers() {
  next_signal_check_ = in.position() + kNodesPerSignalCheck;
  if (PyErr_CheckSignals() == 0) return true;
  context_.interrupted = true;
  return false;
}

bool Decoder::may_copy(std::uint64_t bytes) {
  const bool allowed = copied_.allows(bytes, message_bytes_);
  if (!allowed) in.fail("its parts copy the same bytes too many times");
  return allowed;
}

std::span<const std::byte> Decoder::blob() {
  const std::span<const std::byte> bytes = in.next_blob();
  return may_copy(bytes.size()) ? bytes : std::span<const std::byte>();
}

PyObject*& Decoder::copied_slot(const format::ArrayInfo& info) {
  return at(info.external() ? tables_.copied_externals : tables_.copied, info.buffer);
}

PyObject* Decoder::owner_of(std::uint32_t block) {
  PyObject*& owner = block == kOwnFrame ? frame_owner_ : at(tables_.owners, block);
  if (!owner) owner = context_.owners->make(block);
  return owner;
}

PyObject* Decoder::incompatible(std::size_t position, const Ref& text, Ref cause) {
  if (!text) return nullptr;
  PyObject* cls = error_types().incompatible_message;
  const Ref exception(PyObject_CallOneArg(cls, text.get()));
  if (!exception) return nullptr;
  if (cause) PyException_SetCause(exception.get(), cause.release());
  PyErr_SetObject(cls, exception.get());
  note_incompatible(position);
  return nullptr;
}

void Decoder::note_incompatible(std::size_t position) noexcept {
  const bool is_new = incompatible_node_ == kNone && PyErr_Occurred();
  if (is_new && PyErr_ExceptionMatches(error_types().incompatible_message)) incompatible_node_ = position;
}

PyObject* Decoder::corrupt_unless(PyObject* object, const char* what) {
  if (object) [[likely]]
    return object;
  if (PyErr_Occurred()) {
    Ref text(PyUnicode_FromFormat("The frame is corrupt: %s", what));
    if (text) raise_corrupt_from_current(PyUnicode_AsUTF8(text.get()));
  }
  return nullptr;
}

// --- Walk ------------------------------------------------------------------------------------------------------------

PyObject* Decoder::node() {
  const Kind kind = in.next_kind();
  switch (kind) {
    case Kind::kNone: Py_RETURN_NONE;
    case Kind::kFalse: Py_RETURN_FALSE;
    case Kind::kTrue: Py_RETURN_TRUE;
    case Kind::kInt: return PyLong_FromLongLong(in.next_int());
    case Kind::kFloat: return PyFloat_FromDouble(in.next_float());
    case Kind::kStr: return decode_str(*this, in.next_string());
    case Kind::kBytes: {
      const std::string_view bytes = in.next_string();
      return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    }
    case Kind::kArray: return array();
    case Kind::kNumpyScalar: return decode_numpy_scalar(*this);
    case Kind::kIntList: return int_list();
    case Kind::kFloatList: return float_list();
    case Kind::kReference: return reference();
    case Kind::kStrDict:
    case Kind::kDict:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kSet:
    case Kind::kNamedTuple: {
      if (!in.enter()) return nullptr;
      PyObject* object = container(kind);
      in.leave();
      return object;
    }
    default: return other(kind);
  }
}

PyObject* Decoder::container(Kind kind) {
  if (in.position() >= next_signal_check_ && !run_signal_handlers()) [[unlikely]]
    return nullptr;
  switch (kind) {
    case Kind::kStrDict:
    case Kind::kDict: {
      Ref dict(PyDict_New());
      return dict && decode_pairs(*this, dict.get(), kind == Kind::kStrDict) ? dict.release() : nullptr;
    }
    case Kind::kList: return list();
    case Kind::kTuple: return tuple();
    default: break;
  }
  DecodeHandler* decode = decoder_of(kind);
  return decode ? decode(*this) : (in.fail_kind(kind), nullptr);
}

PyObject* Decoder::other(Kind kind) {
  if (format::has_trait(kind, format::kHasChildren)) {
    if (!in.enter()) return nullptr;
    PyObject* object = container(kind);
    in.leave();
    return object;
  }
  if (DecodeHandler* decode = decoder_of(kind)) return decode(*this);
  return format::is_marked(kind) ? marked(format::unmarked(kind)) : (in.fail_kind(kind), nullptr);
}

// --- Objects that the message refers to again ------------------------------------------------------------------------

PyObject* Decoder::reference() {
  const std::uint64_t position = in.next_length();
  if (in.failed()) return nullptr;
  const DecoderTables::Earlier* earlier = tables_.earlier.find(position);
  if (!earlier) return in.fail(format::kNoSuchNode), nullptr;
  if (!earlier->object) return in.fail(format::kNotThereYet), nullptr;
  expansion_.refer(in.depth(), earlier->extent);
  return Py_NewRef(earlier->object);
}

bool Decoder::may_be_walked(const Expansion::Before& before) {
  const bool allowed = expansion_.allows(expansion_.end(before, in.depth()), in.nodes());
  if (!allowed)
    in.fail(
        "a key, an item of a set or another part that must be traversed is too large or too deep once "
        "its references are expanded");
  return allowed;
}

bool Decoder::may_be_dropped(const Expansion::Before& before) {
  const bool allowed = expansion_.end(before, in.depth()).height <= Expansion::kMaxWalkedDepth;
  if (!allowed) in.fail("defaultdicts reference each other over too many levels");
  return allowed;
}

PyObject* Decoder::marked(Kind kind) {
  if (!format::has_identity(kind)) return in.fail_kind(kind), nullptr;
  const std::size_t position = in.position(), number = tables_.earlier.begin(position);
  const Expansion::Before before = expansion_.begin(in.depth());
  PyObject* object = nullptr;
  if (!format::has_trait(kind, format::kMadeBeforeItems)) {
    object = whole(kind);
    tables_.earlier[number].object = Py_XNewRef(object);
  } else if (in.enter()) {
    marked_ = number;
    object = marked_container(kind);
    in.leave();
  }
  Expansion::Extent extent = expansion_.end(before, in.depth());
  extent.nodes += in.position() + 1 - position;
  tables_.earlier[number].extent = extent;
  return object;
}

PyObject* Decoder::whole(Kind kind) {
  switch (kind) {
    case Kind::kArray: return array();
    case Kind::kNumpyScalar: return decode_numpy_scalar(*this);
    case Kind::kIntList: return int_list();
    case Kind::kFloatList: return float_list();
    default: return other(kind);
  }
}

// Lists grow item by item, because their items may refer to them. Kinds that are not handled here call add_container()
// themselves.
PyObject* Decoder::marked_container(Kind kind) {
  if (kind == Kind::kList) {
    Ref list(PyList_New(0));
    if (!list) return nullptr;
    add_container(list.get());
    const std::uint64_t count = in.next_count();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i % kItemsPerSignalCheck == kItemsPerSignalCheck - 1 && !run_signal_handlers()) return nullptr;
      Ref item(node());
      if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
    }
    return list.release();
  }
  if (kind != Kind::kDict && kind != Kind::kStrDict) return container(kind);
  Ref dict(PyDict_New());
  if (!dict) return nullptr;
  add_container(dict.get());
  return decode_pairs(*this, dict.get(), kind == Kind::kStrDict) ? dict.release() : nullptr;
}

namespace {

// Returns a list or tuple of make(i); null if make() returns null, or if a signal handler raised.
template <bool is_tuple = false, class Make>
PyObject* sequence(Decoder& decoder, std::uint64_t count, Make make) {
  const auto size = static_cast<Py_ssize_t>(count);
  Ref items(is_tuple ? PyTuple_New(size) : PyList_New(size));
  if (!items) return nullptr;
  for (Py_ssize_t i = 0; i < size;) {
    const Py_ssize_t end = std::min(size, i + static_cast<Py_ssize_t>(kItemsPerSignalCheck));
    for (; i < end; ++i) {
      PyObject* item = make(static_cast<std::size_t>(i));
      if (!item) return nullptr;
      if constexpr (is_tuple) {
        PyTuple_SET_ITEM(items.get(), i, item);
      } else {
        PyList_SET_ITEM(items.get(), i, item);
      }
    }
    if (i < size && !decoder.run_signal_handlers()) return nullptr;
  }
  return items.release();
}

}  // namespace

PyObject* Decoder::list() {
  return sequence(*this, in.next_count(), [this](std::size_t) { return node(); });
}

PyObject* Decoder::tuple() {
  return sequence<true>(*this, in.next_count(), [this](std::size_t) { return node(); });
}

PyObject* Decoder::int_list() {
  const std::span<const std::int64_t> numbers = in.next_ints();
  return sequence(*this, numbers.size(), [numbers](std::size_t i) { return PyLong_FromLongLong(numbers[i]); });
}

PyObject* Decoder::float_list() {
  const std::span<const double> numbers = in.next_floats();
  return sequence(*this, numbers.size(), [numbers](std::size_t i) { return PyFloat_FromDouble(numbers[i]); });
}

bool parse_copy_policy(PyObject* value, CopyPolicy* policy) {
  *policy = CopyPolicy::kAuto;
  if (!value || value == Py_None) return true;
  const int copy = PyObject_IsTrue(value);
  *policy = copy ? CopyPolicy::kAll : CopyPolicy::kNone;
  return copy >= 0;
}

PyObject* decode(std::span<const std::byte> frame, DecodeContext& context) {
  if (const auto run = format::flat_run(frame)) return new_bytes(*run);
  format::FrameReader reader;
  const Status loaded = reader.load(frame);
  if (!loaded) return raise_from_frame(loaded.error());
  Decoder decoder(reader, context, frame);
  Ref object(decoder.node());
  if (!object) {
    const std::size_t incompatible = decoder.incompatible_node();
    if (incompatible != Decoder::kNone) explain_node(error_types().incompatible_message, frame, incompatible);
    if (!context.allow_pickle) explain_node(error_types().pickle_refused, frame, reader.position());
    return raise_from_frame(reader.error());
  }
  const Status finished = reader.finish();
  return finished.ok() ? object.release() : raise_from_frame(finished.error());
}

}  // namespace shmtree::python
