// FrameReader::open(): the private copy and everything that is checked before the first node is read.
#include "format/frame_reader.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "schema/shmtree.columns.h"

namespace shmtree::format {

// What a reader needs besides itself; kept by its thread for the next one.
struct FrameReader::Scratch {
  std::vector<std::uint64_t> words;           // the private copy of the metadata
  std::vector<std::string_view> names;        // as far as they were read
  std::vector<std::uint64_t> buffer_offsets;  // in the frame
};

// A few scratches per thread, since unpickling may read another frame in the middle of one. What is unusually large is
// not kept.
struct ScratchPool {
  static constexpr std::size_t kKept = 4;
  static constexpr std::size_t kKeptWords = std::size_t{1} << 17;

  FrameReader::Scratch* kept[kKept] = {};
  std::size_t count = 0;

  // Trivially destructible, so that readers destroyed after their thread's pool still find it.
  static inline thread_local bool gone = false;

  static ScratchPool& of_thread() {
    static thread_local ScratchPool pool;
    return pool;
  }
  ~ScratchPool() {
    gone = true;
    while (count > 0) delete kept[--count];
  }
  FrameReader::Scratch* take() { return count > 0 ? kept[--count] : new FrameReader::Scratch; }
  bool put(FrameReader::Scratch* scratch) {
    if (count == kKept || scratch->words.capacity() > kKeptWords || scratch->names.capacity() > kKeptWords ||
        scratch->buffer_offsets.capacity() > kKeptWords) {
      return false;
    }
    kept[count++] = scratch;
    return true;
  }
};

void FrameReader::ReturnScratch::operator()(Scratch* scratch) const noexcept {
  if (ScratchPool::gone || !ScratchPool::of_thread().put(scratch)) delete scratch;
}

FrameReader::FrameReader(FrameReader&&) noexcept = default;
FrameReader& FrameReader::operator=(FrameReader&&) noexcept = default;
FrameReader::~FrameReader() = default;

namespace {

Error corrupt(std::string reason) {
  return Error{.code = Code::kCorrupt, .message = "The frame is corrupt: " + std::move(reason) + "."};
}

Error no_memory() {
  return Error{.code = Code::kOutOfSharedMemory, .message = "There is no memory left to read the message."};
}

// A copy that later changes of the source cannot reach: the compiler must not read the source a second time.
void copy_private(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  asm volatile("" : : "r"(to) : "memory");
}

}  // namespace

Result<FrameReader> FrameReader::open(std::span<const std::byte> frame) {
  Result<FrameReader> reader = FrameReader();  // loaded in its place: it is large to move
  try {
    Status status = reader->load(frame);
    if (!status.ok()) return std::move(status).error();
  } catch (const std::exception&) {
    return no_memory();
  }
  return reader;
}

Status FrameReader::load(std::span<const std::byte> frame) {
  FrameHeader header;
  if (frame.size() < sizeof(header)) {
    return corrupt("it has " + std::to_string(frame.size()) + " bytes, and its header alone takes 16");
  }
  copy_private(&header, frame.data(), sizeof(header));
  const auto version = static_cast<std::uint8_t>(header.size_version_flags >> 48);
  const auto flags = static_cast<std::uint8_t>(header.size_version_flags >> 56);
  if (header.magic != kFrameMagic) return corrupt("it does not begin with SHMT");
  if (version != kFrameVersion) {
    return Error{.code = Code::kIncompatible,
                 .message = "The frame has version " + std::to_string(version) + "; this library reads version " +
                            std::to_string(kFrameVersion) + "."};
  }
  if (flags != 0) return corrupt("it has unknown flags " + std::to_string(flags));
  frame_ = frame.data();
  total_bytes_ = header.size_version_flags & kMaxFrameBytes;
  metadata_bytes_ = header.metadata_bytes;
  if (total_bytes_ > frame.size()) {
    return corrupt("it says that it has " + std::to_string(total_bytes_) + " bytes, and there are " +
                   std::to_string(frame.size()));
  }
  if (metadata_bytes_ % 8 != 0 || metadata_bytes_ == 0 || metadata_bytes_ > total_bytes_ - sizeof(header)) {
    return corrupt("its metadata cannot have " + std::to_string(metadata_bytes_) + " bytes of " +
                   std::to_string(total_bytes_));
  }
  scratch_.reset(ScratchPool::of_thread().take());
  if (scratch_->words.size() < metadata_bytes_ / 8) scratch_->words.resize(metadata_bytes_ / 8);
  scratch_->names.clear();
  names_ = &scratch_->names;
  copy_private(scratch_->words.data(), frame.data() + sizeof(header), metadata_bytes_);
  Status status = load_columns();
  return status.ok() ? place_buffers() : status;
}

Status FrameReader::load_columns() {
  Segment segment(std::span(scratch_->words).first(metadata_bytes_ / 8));
  if (!segment.read_root()) return corrupt("its metadata does not begin with a struct");
  if (segment.pointers() > schema::Frame::kPointers) return corrupt("it has columns that this version does not know");
  const std::uint64_t* buffers_end = nullptr;
  const External* externals_end = nullptr;
  const bool fits = segment.read_list<schema::kinds>(kinds_.at, kinds_.end) &&
                    segment.read_list<schema::lengths>(lengths_.at, lengths_.end) &&
                    segment.read_list<schema::ints>(ints_.at, ints_.end) &&
                    segment.read_list<schema::floats>(floats_.at, floats_.end) &&
                    segment.read_list<schema::text>(text_.at, text_.end) &&
                    segment.read_list<schema::arrays>(arrays_.at, arrays_.end) &&
                    segment.read_list<schema::buffers>(buffer_sizes_, buffers_end) &&
                    segment.read_list<schema::views>(views_.at, views_.end) &&
                    segment.read_list<schema::externals>(externals_, externals_end);
  if (!fits) return corrupt("a column is not a list of the right element size inside the metadata");
  if (kinds_.is_over()) return corrupt("it has no node");
  kinds_begin_ = kinds_.at;
  buffer_count_ = static_cast<std::size_t>(buffers_end - buffer_sizes_);
  external_count_ = static_cast<std::size_t>(externals_end - externals_);
  return success();
}

// Buffers follow the metadata in order, each at the next multiple of 64; the last one ends the frame.
Status FrameReader::place_buffers() {
  std::vector<std::uint64_t>& offsets = scratch_->buffer_offsets;
  offsets.resize(buffer_count_);
  std::uint64_t end = sizeof(FrameHeader) + metadata_bytes_;
  for (std::size_t i = 0; i < buffer_count_; ++i) {
    const std::uint64_t begin = align_buffer(end);
    if (begin > total_bytes_ || buffer_sizes_[i] > total_bytes_ - begin) {
      return corrupt("buffer " + std::to_string(i) + " of " + std::to_string(buffer_count_) + " with " +
                     std::to_string(buffer_sizes_[i]) + " bytes goes beyond its end");
    }
    offsets[i] = begin;
    end = begin + buffer_sizes_[i];
  }
  if (end != total_bytes_) {
    return corrupt("its parts end at byte " + std::to_string(end) + " and the frame at " +
                   std::to_string(total_bytes_));
  }
  buffer_offsets_ = offsets.data();
  for (std::size_t i = 0; i < external_count_; ++i) {
    const External& range = externals_[i];
    if (range.offset > INT64_MAX || range.bytes > INT64_MAX - range.offset) {
      return corrupt("the place of external range " + std::to_string(i) + " overflows");
    }
  }
  return success();
}

void FrameReader::fail(const char* reason) noexcept {
  if (reason_ != nullptr) return;
  reason_ = reason;
  failed_at_ = static_cast<std::size_t>(kinds_.at - kinds_begin_);
  failed_kind_ = failed_at_ == 0 ? std::uint8_t{0} : kinds_.at[-1];
  with_columns([](auto&... column) { ((column.at = column.end), ...); });
}

void FrameReader::fail_kind(Kind kind) noexcept {
  fail("a node has a kind that is unknown or not expected here");
  failed_kind_ = static_cast<std::uint8_t>(kind);
}

void FrameReader::fail_for_memory() noexcept {
  no_memory_ = reason_ == nullptr;
  fail("there is no memory left for its names");
}

Error FrameReader::error() const {
  if (no_memory_) return no_memory();
  const std::string reason = reason_ == nullptr ? "nothing is wrong with it" : reason_;
  return corrupt(reason + " (after node " + std::to_string(failed_at_) + " of " + std::to_string(nodes()) +
                 ", of kind " + std::to_string(failed_kind_) + " " +
                 std::string(name_of(static_cast<Kind>(failed_kind_))) + ")");
}

Status FrameReader::finish() {
  with_columns([this](auto&... column) {
    if (!(column.is_over() && ...)) fail("values are left over after the last node");
  });
  if (reason_ != nullptr) return error();
  return success();
}

}  // namespace shmtree::format
