// Versions of what lies in a block that several processes write: one writer at a time, and copies that are never torn.
//
// Behind the data, from the next multiple of 64 on, lies a Versioned. The data are plain memory: who does not ask here
// reads and writes them as ever.
//
//   writer:  writer := me; sequence := odd; fence; writes the data; fence; sequence := even; writer := 0; notify
//   reader:  sequence, which is even; copies the data; fence; the same sequence again, or once more from the beginning
//
// Invariants:
//   - While the sequence is even the data are whole: they are those of version sequence / 2.
//   - It is odd while somebody writes, and stays so when a writer dies, or gives up, before it was done. The data are
//     torn then, until the next write was ended.
//   - The writer's word names the one who may write. A dead writer's is taken over by compare-and-swap, wherever it
//     died; that of a living one never is.
//   - Readers change nothing that a copy depends on. One that was overtaken asks writers, by its own word, to let it go
//     first. They do for a while, if it lives and runs; its copy does not depend on it.
//
// What a process that is killed leaves (each line: before the store of that name)
//   sequence := odd   the data are whole, and the next writer takes the word over
//   sequence := even  the data are torn, though they may all be there
//   writer := 0       the data are whole, the version counts, and the next writer takes the word over
//   notify            whoever waits looks again after a slice
//
// Thread safety: an object is a name for the words, made where it is needed; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "memory/arena.h"

namespace shmtree::shared_array {

struct alignas(64) Versioned {
  std::uint64_t magic;
  std::atomic<std::uint64_t> sequence;   // twice the version; one more while it is written, or torn
  std::atomic<std::uint32_t> writer;     // a lock word, never contended: sleepers are at `changed`
  std::atomic<std::uint32_t> reader;     // likewise: of one that was overtaken
  std::atomic<std::int32_t> writer_pid;  // of the last writer; for messages only
  std::uint32_t reserved[9];
  memory::Event changed;  // a write was ended, or given up; a reader was served
};
static_assert(sizeof(Versioned) == 128);
constexpr std::uint64_t kVersionedMagic = 0x736e737265766d73;  // "smversns"

class Versions {
 public:
  // What a block has to have for data of so many bytes.
  static constexpr std::uint64_t block_bytes(std::uint64_t data_bytes) noexcept {
    return memory::round_up(data_bytes, alignof(Versioned)) + sizeof(Versioned);
  }
  // Of a block that nobody else knows yet: version 0.
  static void init(std::byte* block, std::uint64_t data_bytes) noexcept;
  // Code::kInvalid for a block that has no versions. The block must be held as long as the object is used.
  static Result<Versions> of(const memory::Lease& block, std::uint64_t data_bytes);

  // Begins a write, when no other is under way: by whatever process or thread. kTimeout names who writes; kInterrupted.
  Status begin_write(const platform::WaitContext& wait) const;
  // Ends it: the data are the next version, or torn when they are not `whole`. Code::kInvalid in a process that has not
  // begun it, such as a child that was forked meanwhile.
  Status end_write(bool whole) const noexcept;

  // Copies the data to `out`, which has their size; the version that they are. kTimeout when writers were always at
  // work, or one is stopped, which it names; at once kPeerDied when the data are torn; kInterrupted. Hooks are told of
  // copies above 64 KiB.
  Result<std::uint64_t> read(std::byte* out, const platform::WaitContext& wait) const;
  // Waits for a version above `known`, and returns the newest. kTimeout, kInterrupted.
  Result<std::uint64_t> wait_for_newer(std::uint64_t known, const platform::WaitContext& wait) const;

  std::uint64_t bytes() const noexcept { return bytes_; }
  // How many writes were ended.
  std::uint64_t version() const noexcept { return platform::load_acquire(shared_->sequence) / 2; }
  // Whether a write began and its writer will not end it.
  bool is_torn() const noexcept;

 private:
  Versions(memory::Arena& arena, std::byte* data, std::uint64_t bytes, Versioned* shared) noexcept
      : arena_(&arena), data_(data), bytes_(bytes), shared_(shared) {}
  bool is_alive(std::uint32_t word) const noexcept;
  bool take(std::atomic<std::uint32_t>& word, memory::Identity me) const noexcept;
  void let_go(std::atomic<std::uint32_t>& word) const noexcept;
  bool is_torn_at(std::uint64_t sequence) const noexcept;
  Error timed_out(const char* what) const;
  Error torn() const;

  memory::Arena* arena_;
  std::byte* data_;
  std::uint64_t bytes_;
  Versioned* shared_;
};

}  // namespace shmtree::shared_array
