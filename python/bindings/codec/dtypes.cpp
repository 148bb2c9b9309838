#include "bindings/codec/dtypes.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "platform/flat_table.h"
#include "platform/never_destroyed.h"

namespace shmtree::python {
namespace {

constexpr int kPlainTypes = 24;  // NPY_BOOL to NPY_HALF

std::array<PyArray_Descr*, kMaxDType + 1> descr_by_code{};
std::array<PyArray_Descr*, kPlainTypes> descr_by_number{};
std::array<DType, kPlainTypes> code_by_number{};

DType integer_code(int bytes, bool is_signed) noexcept {
  switch (bytes) {
    case 1: return is_signed ? DType::kInt8 : DType::kUInt8;
    case 2: return is_signed ? DType::kInt16 : DType::kUInt16;
    case 4: return is_signed ? DType::kInt32 : DType::kUInt32;
    default: return is_signed ? DType::kInt64 : DType::kUInt64;
  }
}

void enter(int number, DType code) {
  PyArray_Descr* descr = PyArray_DescrFromType(number);
  const auto index = static_cast<std::size_t>(number);
  descr_by_number[index] = descr;
  code_by_number[index] = code;
  // If several C types have the same size, the first one is the one that NumPy prefers.
  PyArray_Descr*& preferred = descr_by_code[static_cast<std::size_t>(code)];
  if (!preferred) preferred = descr;
}

// The field names of a dtype and of its nested dtypes at the time of its description, because `dtype.names = ...`
// changes them in place.
class FieldNames {
 public:
  FieldNames() = default;
  explicit FieldNames(PyArray_Descr* descr) { add(descr); }
  bool are_as_they_were() const {
    return std::all_of(known_.begin(), known_.end(), [](const Known& known) {
      return PyDataType_NAMES(reinterpret_cast<PyArray_Descr*>(known.descr.get())) == known.names.get();
    });
  }

 private:
  struct Known {
    Ref descr, names;  // references, so that the address of the tuple is not reused
  };
  // The recursion ends because a dtype cannot contain itself.
  void add(PyArray_Descr* descr) {
    if (PyDataType_HASSUBARRAY(descr)) return add(PyDataType_SUBARRAY(descr)->base);
    PyObject* names = PyDataType_NAMES(descr);
    if (!names) return;
    known_.push_back({Ref::borrow(reinterpret_cast<PyObject*>(descr)), Ref::borrow(names)});
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      const Ref field = item_of(PyDataType_FIELDS(descr), PyTuple_GET_ITEM(names, i));
      if (field) add(reinterpret_cast<PyArray_Descr*>(PyTuple_GET_ITEM(field.get(), 0)));
    }
  }

  std::vector<Known> known_;
};

// Cache entry: the text of a dtype that was described recently. The entry holds a reference to the dtype, so that its
// address is not reused.
struct Described {
  PyArray_Descr* descr = nullptr;
  PyObject* text = nullptr;
  ObjectFields objects = ObjectFields::kRefused;
  FieldNames names{};
};
constexpr std::size_t kDescribed = 64;
std::array<Described, kDescribed> described;
Mutex described_mutex;

Described& described_slot(PyArray_Descr* descr) noexcept {
  return described[platform::slot_of_address<kDescribed>(descr)];
}

struct Parsed {
  Ref dtype;
  FieldNames names;
};
Mutex parsed_mutex;
std::unordered_map<std::string, Parsed>& parsed() {
  return platform::never_destroyed<std::unordered_map<std::string, Parsed>>();
}

Ref described_before(PyArray_Descr* descr, ObjectFields objects) {
  const std::lock_guard guard(described_mutex);
  const Described& slot = described_slot(descr);
  const bool is_known = slot.descr == descr && slot.objects == objects && slot.names.are_as_they_were();
  return is_known ? Ref::borrow(slot.text) : Ref();
}

void remember(PyArray_Descr* descr, ObjectFields objects, PyObject* text) {
  Ref old_descr, old_text;  // dropped after the lock is released
  FieldNames names(descr);
  const std::lock_guard guard(described_mutex);
  Described& slot = described_slot(descr);
  old_descr = Ref(reinterpret_cast<PyObject*>(std::exchange(slot.descr, descr)));
  old_text = Ref(std::exchange(slot.text, Py_NewRef(text)));
  Py_INCREF(reinterpret_cast<PyObject*>(descr));
  slot.objects = objects;
  std::swap(slot.names, names);
}

// Returns the cached dtype for a text, as separate_dtype() does. Returns null if it is not cached or if an error is
// set.
Ref parsed_before(const std::string& text) {
  const std::lock_guard guard(parsed_mutex);
  const auto found = parsed().find(text);
  if (found == parsed().end() || !found->second.names.are_as_they_were()) return Ref();
  return separate_dtype(found->second.dtype.get());
}

void remember(std::string text, PyObject* dtype) {
  constexpr std::size_t kMaxKept = 1024;
  Parsed parsed_dtype{Ref::borrow(dtype), FieldNames(reinterpret_cast<PyArray_Descr*>(dtype))};
  std::unordered_map<std::string, Parsed> old;  // destroyed after the lock is released, like the old value in `made`
  const std::lock_guard guard(parsed_mutex);
  if (parsed().size() >= kMaxKept) old.swap(parsed());
  std::swap(parsed()[std::move(text)], parsed_dtype);
}

std::string_view view_of(PyObject* text) {
  if (text == Py_None) return {};
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  return data ? std::string_view(data, static_cast<std::size_t>(size)) : std::string_view();
}

}  // namespace

void init_dtypes() {
  enter(NPY_BOOL, DType::kBool);
  // Enters long before long long: if both have 64 bits, np.int64 is a name of long.
  enter(NPY_LONG, integer_code(sizeof(long), true));
  enter(NPY_ULONG, integer_code(sizeof(long), false));
  enter(NPY_BYTE, DType::kInt8);
  enter(NPY_UBYTE, DType::kUInt8);
  enter(NPY_SHORT, DType::kInt16);
  enter(NPY_USHORT, DType::kUInt16);
  enter(NPY_INT, DType::kInt32);
  enter(NPY_UINT, DType::kUInt32);
  enter(NPY_LONGLONG, DType::kInt64);
  enter(NPY_ULONGLONG, DType::kUInt64);
  enter(NPY_HALF, DType::kFloat16);
  enter(NPY_FLOAT, DType::kFloat32);
  enter(NPY_DOUBLE, DType::kFloat64);
  enter(NPY_CFLOAT, DType::kComplex64);
  enter(NPY_CDOUBLE, DType::kComplex128);
}

DType dtype_code(PyArray_Descr* descr) noexcept {
  const int number = descr->type_num;
  if (number < 0 || number >= kPlainTypes) return DType::kOther;
  const auto index = static_cast<std::size_t>(number);
  // NumPy has one object per plain type. Other objects with the same number have another byte order or metadata.
  if (descr_by_number[index] == descr) [[likely]]
    return code_by_number[index];
  return DType::kOther;
}

PyArray_Descr* descr_of(DType code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index <= kMaxDType ? descr_by_code[index] : nullptr;
}

Ref descr_of_other_package(DType code, bool may_import) {
  const std::string_view name = name_of(code);
  const Ref text(PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  Ref found(text ? call_python(package().dtype_of_other_package, text.get(), may_import ? Py_True : Py_False)
                 : nullptr);
  return found && PyArray_DescrCheck(found.get()) ? std::move(found) : Ref();
}

bool describe_dtype(PyArray_Descr* descr, ObjectFields objects, Ref* owner, std::string_view* text) {
  *owner = described_before(descr, objects);
  if (!*owner) {
    *owner = Ref(call_python(package().describe_dtype, reinterpret_cast<PyObject*>(descr),
                             objects == ObjectFields::kAllowed ? Py_True : Py_False));
    if (!*owner) return false;
    remember(descr, objects, owner->get());
  }
  *text = view_of(owner->get());
  return !PyErr_Occurred();
}

Ref separate_dtype(PyObject* dtype) {
  auto* descr = reinterpret_cast<PyArray_Descr*>(dtype);
  if (!PyDataType_NAMES(descr)) return Ref::borrow(dtype);
  return Ref(reinterpret_cast<PyObject*>(PyArray_DescrNew(descr)));
}

Ref parse_dtype(std::string_view text) {
  std::string key(text);
  Ref cached = parsed_before(key);
  if (cached || PyErr_Occurred()) return cached;
  Ref argument(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict"));
  Ref descr(argument ? call_python(package().parse_dtype, argument.get()) : nullptr);
  if (!descr) {
    raise_corrupt_from_current("The frame is corrupt: NumPy cannot parse a dtype in it");
    return Ref();
  }
  remember(key, descr.get());
  cached = parsed_before(key);
  return cached || PyErr_Occurred() ? std::move(cached) : std::move(descr);
}

}  // namespace shmtree::python
