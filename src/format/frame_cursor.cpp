// FrameReader's cursor: the parts that are not inline, above all arrays.
#include <cstdint>

#include "format/frame_reader.h"
#include "schema/shmtree.columns.h"

namespace shmtree::format {

namespace {

bool add(std::int64_t& sum, std::int64_t value) noexcept {
  return !__builtin_add_overflow(sum, value, &sum);
}

}  // namespace

std::uint64_t FrameReader::next_long_length() noexcept {
  const std::int64_t value = next_int();
  if (value < 0) return fail("a length is negative"), 0;
  return static_cast<std::uint64_t>(value);
}

Name FrameReader::new_name() noexcept {
  const std::uint64_t bytes = next_length();
  if (bytes > kMaxNameBytes) return fail("a name is longer than 4096 bytes"), Name();
  const std::string_view text = next_text(bytes);
  if (failed()) return {};
  try {
    names_->push_back(text);
  } catch (...) {
    return fail_for_memory(), Name();
  }
  return {static_cast<std::uint32_t>(names_->size() - 1), true, text};
}

DType FrameReader::next_dtype(Name& description) noexcept {
  const std::uint64_t code = next_length();
  if (code > kMaxDType) return fail("an element type is unknown"), DType::kOther;
  const auto dtype = static_cast<DType>(code);
  if (dtype == DType::kOther) description = next_name();
  return dtype;
}

bool FrameReader::next_array(ArrayInfo& out) noexcept {
  if (arrays_.is_over()) [[unlikely]]
    return fail("an array descriptor is missing"), false;
  const std::uint64_t word = *arrays_.at++;
  const auto code = static_cast<std::uint8_t>(word >> schema::Array::dtype);
  out.flags = static_cast<std::uint8_t>(word >> schema::Array::flags);
  out.ndim = static_cast<std::uint8_t>(word >> schema::Array::ndim);
  if (code > kMaxDType) return fail("an array has an unknown element type"), false;
  if ((out.flags & ~kAllArrayFlags) != 0 || (word >> schema::Array::spare & 255) != 0)
    return fail("an array has unknown flags"), false;
  if (out.ndim > kMaxDims) return fail("an array has more than 64 dimensions"), false;
  out.dtype = static_cast<DType>(code);
  out.item_bytes = shmtree::item_bytes(out.dtype);
  out.description = {};
  if (out.dtype == DType::kOther) {
    out.description = next_name();
    out.item_bytes = next_length();
  }
  if (!read_shape(out) || !read_view(out)) return false;
  if ((out.flags & kNoBuffer) != 0) {
    out.data = nullptr;
    out.buffer = kNoIndex;
    out.buffer_bytes = 0;
    if (out.nbytes != 0) return fail("an array with elements has no buffer"), false;
    if ((out.flags & (kExternal | kOffset | kStrided)) != 0) return fail("an array without bytes has a place"), false;
    return true;
  }
  return locate(out, static_cast<std::uint32_t>(word >> schema::Array::buffer));
}

// Shape, number of elements and bytes. The bytes that the dimensions other than 0 would make must fit in 63 bits, as
// NumPy demands even of an empty array.
bool FrameReader::read_shape(ArrayInfo& out) noexcept {
  std::uint64_t bytes = out.item_bytes;
  std::uint64_t elements = 1;
  bool empty = false;
  bool fits = bytes <= INT64_MAX;
  for (std::size_t i = 0; i < out.ndim; ++i) {
    const std::uint64_t count = next_length();
    out.shape[i] = static_cast<std::int64_t>(count);
    if (count == 0) {
      empty = true;
    } else {
      fits = fits && !__builtin_mul_overflow(elements, count, &elements) &&
             !__builtin_mul_overflow(bytes, count, &bytes) && elements <= INT64_MAX && bytes <= INT64_MAX;
    }
  }
  if (failed()) return false;
  if (!fits) return fail("the shape of an array overflows"), false;
  out.elements = empty ? 0 : elements;
  out.nbytes = empty ? 0 : bytes;
  return true;
}

bool FrameReader::read_view(ArrayInfo& out) noexcept {
  const bool offset = (out.flags & kOffset) != 0;
  const bool strided = (out.flags & kStrided) != 0;
  const std::size_t wanted = (offset ? 1u : 0u) + (strided ? out.ndim : 0u);
  if (wanted > views_.left()) return fail("an offset or stride is missing"), false;
  out.offset = offset ? *views_.at++ : 0;
  if (strided) {
    for (std::size_t i = 0; i < out.ndim; ++i) out.strides[i] = *views_.at++;
    return true;
  }
  // Multiplied without checks: read_shape() has seen that the product of all fits, zeros aside.
  auto stride = static_cast<std::int64_t>(out.item_bytes);
  for (std::size_t n = 0; n < out.ndim; ++n) {
    const std::size_t i = (out.flags & kFortran) != 0 ? n : out.ndim - 1 - n;
    out.strides[i] = stride;
    if (out.shape[i] > 1) stride *= out.shape[i];
  }
  return true;
}

bool FrameReader::locate(ArrayInfo& out, std::uint32_t buffer) noexcept {
  out.buffer = buffer;
  if (out.nbytes == 0) return fail("an array without bytes has a buffer"), false;
  if (out.external()) {
    if (buffer >= external_count_) return fail("an array refers to an external range that is not there"), false;
    out.buffer_bytes = externals_[buffer].bytes;
    out.data = nullptr;
  } else {
    if (buffer >= buffer_count_) return fail("an array refers to a buffer that is not there"), false;
    out.buffer_bytes = buffer_sizes_[buffer];
    out.data = frame_ + buffer_offsets_[buffer];
  }
  if (!check_extent(out)) return fail("an array goes beyond its buffer"), false;
  if (out.data != nullptr) out.data += out.offset;
  return true;
}

// Every element in the buffer; and never more element bytes than the buffer has, so that zero strides cannot make a
// small frame into a large copy.
bool FrameReader::check_extent(const ArrayInfo& out) noexcept {
  if (out.nbytes > out.buffer_bytes || out.offset < 0) return false;
  std::int64_t low = out.offset;
  std::int64_t high = out.offset;
  if (out.contiguous()) {
    return add(high, static_cast<std::int64_t>(out.nbytes)) && static_cast<std::uint64_t>(high) <= out.buffer_bytes;
  }
  for (std::size_t i = 0; i < out.ndim; ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(out.shape[i] - 1, out.strides[i], &reach)) return false;
    if (!add(reach < 0 ? low : high, reach)) return false;
  }
  return low >= 0 && add(high, static_cast<std::int64_t>(out.item_bytes)) &&
         static_cast<std::uint64_t>(high) <= out.buffer_bytes;
}

std::span<const std::byte> FrameReader::next_blob() noexcept {
  ArrayInfo info;
  if (!next_array(info)) return {};
  if (info.dtype != DType::kUInt8 || info.ndim != 1 || !info.contiguous() || info.external()) {
    return fail("long text or bytes are not a plain run of bytes"), std::span<const std::byte>();
  }
  return {info.data, static_cast<std::size_t>(info.nbytes)};
}

}  // namespace shmtree::format
