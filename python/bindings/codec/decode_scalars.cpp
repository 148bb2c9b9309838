#include <cstdlib>
#include <memory>

#include "bindings/codec/decoder.h"
#include "bindings/cpython/large_copy.h"
#include "bindings/cpython/python_ints.h"

namespace shmtree::python {
namespace {

struct FreeBytes {
  void operator()(char* bytes) const noexcept { std::free(bytes); }
};

}  // namespace

PyObject* decode_str(Decoder& decoder, std::string_view text) {
  return decoder.corrupt_unless(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"), "a text is not UTF-8");
}

PyObject* decode_long_str(Decoder& decoder) {
  const std::span<const std::byte> blob = decoder.blob();
  if (decoder.in.failed()) return nullptr;
  // Parsed from a copy: others may still write to the frame.
  const std::unique_ptr<char, FreeBytes> bytes(static_cast<char*>(std::malloc(blob.size() + 1)));
  if (!bytes) return PyErr_NoMemory();
  copy_to_fresh(bytes.get(), blob.data(), blob.size());
  return decode_str(decoder, {bytes.get(), blob.size()});
}

PyObject* decode_big_int(Decoder& decoder) {
  const std::string_view bytes = decoder.in.next_string();
  if (bytes.empty()) return decoder.in.fail("a big int has no bytes"), nullptr;
  return int_from_bytes(bytes.data(), bytes.size());
}

PyObject* decode_long_bytes(Decoder& decoder) {
  const std::span<const std::byte> blob = decoder.blob();
  if (decoder.in.failed()) return nullptr;
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(blob.size()));
  if (bytes) copy_to_fresh(PyBytes_AS_STRING(bytes), blob.data(), blob.size());
  return bytes;
}

PyObject* decode_bytearray(Decoder& decoder, bool is_long) {
  if (!is_long) {
    const std::string_view bytes = decoder.in.next_string();
    return PyByteArray_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  }
  const std::span<const std::byte> blob = decoder.blob();
  if (decoder.in.failed()) return nullptr;
  PyObject* bytes = PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(blob.size()));
  if (bytes) copy_to_fresh(PyByteArray_AS_STRING(bytes), blob.data(), blob.size());
  return bytes;
}

PyObject* decode_memoryview(Decoder& decoder) {
  if (decoder.in.next_kind() != Kind::kArray) return decoder.in.fail("a memoryview has no array"), nullptr;
  Ref array(decoder.array());
  return array ? decoder.corrupt_unless(PyMemoryView_FromObject(array.get()), "a memoryview of such elements cannot be")
               : nullptr;
}

PyObject* decode_range(Decoder& decoder) {
  const std::int64_t start = decoder.in.next_int();
  const std::int64_t stop = decoder.in.next_int();
  const std::int64_t step = decoder.in.next_int();
  if (step == 0) decoder.in.fail("a range has no step");
  if (decoder.in.failed()) return nullptr;
  return PyObject_CallFunction(type_object(&PyRange_Type), "LLL", static_cast<long long>(start),
                               static_cast<long long>(stop), static_cast<long long>(step));
}

PyObject* decode_slice(Decoder& decoder) {
  Ref start(decoder.node());
  Ref stop(start ? decoder.node() : nullptr);
  Ref step(stop ? decoder.node() : nullptr);
  return step ? PySlice_New(start.get(), stop.get(), step.get()) : nullptr;
}

}  // namespace shmtree::python
