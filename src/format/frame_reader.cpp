#include "format/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "format/flat.h"
#include "format/metadata_reader.h"
#include "platform/other_version.h"

namespace shmtree::format {

// Working memory of a reader. Its thread keeps it for the next reader.
struct FrameReader::Scratch {
  std::vector<std::uint64_t> words;     // private copy of the metadata
  std::vector<std::string_view> names;  // names read so far
  std::vector<std::uint64_t> buffer_offsets;
};

// Keeps a few scratches per thread, because unpickling may read another frame while one is being read. Frees unusually
// large scratches. The pool is trivially destructible, so that a reader that is destroyed after its thread's pool was
// closed can still access it. An access then also needs only one thread-local look-up.
struct ScratchPool {
  static constexpr std::size_t kMaxIdle = 4;
  static constexpr std::size_t kMaxWords = std::size_t{1} << 17;

  FrameReader::Scratch* idle[kMaxIdle];
  std::size_t count;
  bool closed;

  static thread_local constinit ScratchPool of_thread;

  FrameReader::Scratch* take() { return count > 0 ? idle[--count] : make(); }
  void give_back(FrameReader::Scratch* scratch) noexcept {
    if (closed || count == kMaxIdle || scratch->words.capacity() > kMaxWords || scratch->names.capacity() > kMaxWords ||
        scratch->buffer_offsets.capacity() > kMaxWords) {
      delete scratch;
    } else {
      idle[count++] = scratch;
    }
  }
  [[gnu::noinline]] static FrameReader::Scratch* make() {
    struct AtThreadEnd {
      ~AtThreadEnd() { of_thread.close(); }
    };
    static thread_local AtThreadEnd at_thread_end;
    return new FrameReader::Scratch;
  }
  void close() noexcept {
    closed = true;
    while (count > 0) delete idle[--count];
  }
};

thread_local constinit ScratchPool ScratchPool::of_thread{};

void FrameReader::ReturnScratch::operator()(Scratch* scratch) const noexcept {
  ScratchPool::of_thread.give_back(scratch);
}

FrameReader::FrameReader(FrameReader&&) noexcept = default;
FrameReader& FrameReader::operator=(FrameReader&&) noexcept = default;
FrameReader::~FrameReader() = default;

namespace {

bool add(std::int64_t& sum, std::int64_t value) noexcept {
  return !__builtin_add_overflow(sum, value, &sum);
}

// Returns true if every element is inside the buffer. Also requires that the elements take at most as many bytes as the
// buffer has, so that zero strides cannot turn a small frame into a large copy.
bool fits(const ArrayInfo& out) noexcept {
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

}  // namespace

Result<FrameReader> FrameReader::open(std::span<const std::byte> frame) {
  FrameReader reader;
  Status loaded = reader.load(frame);
  if (!loaded) return std::move(loaded).error();
  return reader;
}

Status FrameReader::load(std::span<const std::byte> frame) {
  try {
    return load_metadata(frame);
  } catch (const std::exception&) {
    return no_memory();
  }
}

Status FrameReader::load_metadata(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(FrameHeader)) {
    return corrupt("it has " + std::to_string(frame.size()) + " bytes, fewer than its header of 16");
  }
  const FrameHeader header = read_header(frame.data());
  const auto version = static_cast<std::uint8_t>(header.size_version_flags >> 48);
  const auto flags = static_cast<std::uint8_t>(header.size_version_flags >> 56);
  if (header.magic != kFrameMagic) return corrupt("it does not begin with SHMT");
  if (version != kFrameVersion) {
    return platform::other_version("The frame has version", version, kFrameVersion);
  }
  if ((flags & ~kFlat) != 0) return corrupt("it has unknown flags " + std::to_string(flags));
  total_bytes_ = header.size_version_flags & kMaxFrameBytes;
  metadata_bytes_ = header.metadata_bytes;
  if (total_bytes_ > frame.size()) {
    return corrupt("its header says " + std::to_string(total_bytes_) + " bytes, but the buffer has " +
                   std::to_string(frame.size()));
  }
  if (flags == kFlat) return load_flat(frame);
  const std::uint64_t available = total_bytes_ - std::min<std::uint64_t>(total_bytes_, sizeof(header));
  if (metadata_bytes_ % 8 != 0 || metadata_bytes_ == 0 || metadata_bytes_ > available) {
    return corrupt("its metadata cannot have " + std::to_string(metadata_bytes_) + " bytes of " +
                   std::to_string(total_bytes_));
  }
  scratch_.reset(ScratchPool::of_thread.take());
  if (scratch_->words.size() < metadata_bytes_ / 8) scratch_->words.resize(metadata_bytes_ / 8);
  scratch_->names.clear();
  copy_private(scratch_->words.data(), frame.data() + sizeof(header), metadata_bytes_);
  Status status = load_columns();
  return status.ok() ? place_buffers(frame.data()) : status;
}

// Fills the columns as if the metadata had one node of kind bytes. A run of up to kMaxInlineText bytes becomes `text`,
// and a longer one a buffer.
Status FrameReader::load_flat(std::span<const std::byte> frame) {
  static constexpr std::uint8_t kBytes[] = {static_cast<std::uint8_t>(Kind::kBytes)};
  static constexpr std::uint8_t kLongBytes[] = {static_cast<std::uint8_t>(Kind::kLongBytes)};
  static constexpr std::uint8_t kEscape[] = {kLengthEscape};
  static constexpr ArrayDescriptor kRun[] = {
      {.dtype = static_cast<std::uint8_t>(DType::kUInt8), .flags = kReadOnly, .ndim = 1, .buffer = 0}};
  const auto run = flat_run(frame);
  if (!run) {
    return corrupt("a frame of bytes alone cannot have " + std::to_string(metadata_bytes_) + " bytes of padding and " +
                   std::to_string(total_bytes_) + " bytes in all");
  }
  const std::size_t begin = static_cast<std::size_t>(run->data() - frame.data());
  total_bytes_ = begin + run->size();
  metadata_bytes_ = 0;
  const bool is_long = run->size() > kMaxInlineText;
  scratch_.reset(ScratchPool::of_thread.take());
  scratch_->names.clear();
  const std::size_t text_words = is_long ? 0 : (run->size() + 7) / 8;
  std::vector<std::uint64_t>& words = scratch_->words;
  if (words.size() < 1 + text_words) words.resize(1 + text_words);
  words[0] = run->size();
  FrameColumns columns;
  columns.kinds = kBytes;
  columns.lengths = kEscape;
  columns.ints = {reinterpret_cast<std::int64_t*>(words.data()), 1};
  if (is_long) {
    columns.kinds = kLongBytes;
    columns.arrays = kRun;
    columns.buffers = {words.data(), 1};
  } else {
    copy_private(words.data() + 1, run->data(), run->size());
    columns.text = {reinterpret_cast<const char*>(words.data() + 1), run->size()};
  }
  set_columns(columns);
  scratch_->buffer_offsets.assign(1, 0);
  buffer_offsets_ = scratch_->buffer_offsets.data();
  first_buffer_ = is_long ? run->data() : nullptr;
  buffer_bytes_ = is_long ? run->size() : 0;
  return success();
}

Status FrameReader::load_columns() {
  FrameColumns read;
  Status status = read_metadata(std::span(scratch_->words).first(metadata_bytes_ / 8), read);
  if (!status) return status;
  set_columns(read);
  if (columns().kinds.is_over()) return corrupt("it has no node");
  return success();
}

void FrameReader::set_columns(const FrameColumns& read) noexcept {
  ColumnCursors& columns = this->columns();
  columns.kinds = ColumnCursor(read.kinds);
  columns.lengths = ColumnCursor(read.lengths);
  columns.text = ColumnCursor(read.text);
  columns.ints = ColumnCursor(read.ints);
  columns.floats = ColumnCursor(read.floats);
  columns.arrays = ColumnCursor(read.arrays);
  columns.views = ColumnCursor(read.views);
  buffers_ = ColumnCursor(read.buffers);
  externals_ = ColumnCursor(read.externals);
  begin(scratch_->names);
}

// Buffers follow the metadata in order, each at the next multiple of 64; the last one ends the frame.
Status FrameReader::place_buffers(const std::byte* frame) {
  std::vector<std::uint64_t>& offsets = scratch_->buffer_offsets;
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  const std::size_t count = buffers_.left();
  const std::uint64_t first = align_buffer(end);
  offsets.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t begin = align_buffer(end);
    if (begin > total_bytes_ || buffers_.at[i] > total_bytes_ - begin) {
      return corrupt("buffer " + std::to_string(i) + " of " + std::to_string(count) + " with " +
                     std::to_string(buffers_.at[i]) + " bytes goes beyond its end");
    }
    offsets[i] = begin - first;
    end = begin + buffers_.at[i];
  }
  if (end != total_bytes_) {
    return corrupt("its parts end at byte " + std::to_string(end) + " and the frame at " +
                   std::to_string(total_bytes_));
  }
  buffer_offsets_ = offsets.data();
  first_buffer_ = count == 0 ? nullptr : frame + first;
  buffer_bytes_ = count == 0 ? 0 : end - first;
  for (const External* range = externals_.at; range != externals_.end; ++range) {
    if (range->offset > INT64_MAX || range->bytes > INT64_MAX - range->offset) {
      return corrupt("the offset of external range " + std::to_string(range - externals_.at) + " overflows");
    }
  }
  return success();
}

bool FrameReader::next_array(ArrayInfo& out) noexcept {
  const ArrayDescriptor* descriptor = next_descriptor();
  if (descriptor == nullptr) return false;
  const std::uint8_t code = descriptor->dtype;
  out.flags = descriptor->flags;
  out.ndim = descriptor->ndim;
  if (code > kMaxDType) return fail("an array has an unknown element type"), false;
  if ((out.flags & ~kAllArrayFlags) != 0) return fail("an array has unknown flags"), false;
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
    if ((out.flags & (kExternal | kOffset | kStrided)) != 0) return fail("an array without bytes has an offset"), false;
    return true;
  }
  return locate(out, descriptor->buffer);
}

// Reads the shape, and computes the number of elements and bytes. The product of the item size and all dimensions
// except zeros must fit in 63 bits; NumPy requires this even of an empty array.
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
  const std::int64_t* views = nullptr;
  if (wanted != 0 && (views = next_views(wanted)) == nullptr) return false;
  out.offset = offset ? *views++ : 0;
  if (strided) {
    for (std::size_t i = 0; i < out.ndim; ++i) out.strides[i] = *views++;
    return true;
  }
  // Needs no overflow checks: read_shape() has checked that the product of all dimensions except zeros fits.
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
    if (buffer >= externals_.left()) return fail("an array refers to an external range that does not exist"), false;
    out.buffer_bytes = externals_.at[buffer].bytes;
    out.data = nullptr;
  } else {
    if (buffer >= buffers_.left()) return fail("an array refers to a buffer that does not exist"), false;
    out.buffer_bytes = buffers_.at[buffer];
    out.data = first_buffer_ + buffer_offsets_[buffer];
  }
  if (!fits(out)) return fail("an array goes beyond its buffer"), false;
  if (out.data != nullptr) out.data += out.offset;
  return true;
}

bool FrameReader::next_blob(ArrayInfo& out) noexcept {
  if (!next_array(out)) return false;
  if (out.dtype == DType::kUInt8 && out.ndim == 1 && out.contiguous() && !out.external()) return true;
  return fail("long text or bytes are not contiguous bytes"), false;
}

std::span<const std::byte> FrameReader::next_blob() noexcept {
  ArrayInfo info;
  if (!next_blob(info)) return {};
  return {info.data, static_cast<std::size_t>(info.nbytes)};
}

bool FrameReader::locate_in(Blocks blocks, ArrayInfo& array) noexcept {
  SHMTREE_DCHECK(array.external());
  const External range = external(array.buffer);
  if (range.reference >= blocks.size()) return fail("it refers to a block that the message does not have"), false;
  const std::span<const std::byte> block = blocks[range.reference];
  if (range.offset > block.size() || range.bytes > block.size() - range.offset) {
    return fail("it refers to bytes beyond the end of a block"), false;
  }
  array.data = block.data() + range.offset + array.offset;
  return true;
}

std::uint64_t FrameReader::next_segment_count() noexcept {
  const std::uint64_t count = next_length();
  if (failed()) return 0;
  if (count == 0 || count > kMaxSegments) return fail("a Cap'n Proto message has no segment, or more than 512"), 0;
  if (count > left().arrays.left()) return fail("a Cap'n Proto message has more segments than there are arrays"), 0;
  return count;
}

bool FrameReader::next_segment(ArrayInfo& out) noexcept {
  if (!next_array(out)) return false;
  const bool is_run = out.dtype == DType::kUInt8 && out.ndim == 1 && out.contiguous();
  if (!is_run || out.nbytes % kWordBytes != 0) {
    return fail("a segment of a Cap'n Proto message is not a contiguous array of whole words"), false;
  }
  const std::uint64_t before = out.external() ? externals_.at[out.buffer].offset : 0;
  if ((before + static_cast<std::uint64_t>(out.offset)) % kWordBytes == 0) return true;
  return fail("a segment of a Cap'n Proto message does not begin at a multiple of 8 bytes"), false;
}

}  // namespace shmtree::format
