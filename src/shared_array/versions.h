// A seqlock for the data of a block that several processes write: one writer at a time, and copies that are never torn.
//
// A Versioned follows the data, at the next multiple of 64. The data are plain memory: code that does not use Versions
// reads and writes them without protection.
//
//   writer:  writer := me; sequence := odd; fence; write the data; fence; sequence := even; writer := 0; notify
//   reader:  read an even sequence; copy the data; fence; read the sequence again; start over if it has changed
//
// Invariants:
//   - While the sequence is even, the data are whole: they are version sequence / 2.
//   - The sequence is odd during a write, and stays odd if the writer dies or gives up before the end. Then the data
//     are torn until a write with Extent::kWhole has ended. Other writes fail, so none builds on torn data.
//   - The word `writer` names the only process that may write. A dead writer's word is taken over by compare-and-swap,
//     wherever the writer died. The word of a living writer is never taken over.
//   - Readers change nothing on which a copy depends. A reader that was overtaken asks writers, by the word `reader`,
//     to let it go first. They do so for a while if the reader is alive and not stopped. A copy is correct even if they
// do not.
//
// State after a kill (each line: before the store of that name):
//   sequence := odd   the data are whole, and the next writer takes the word over
//   sequence := even  the data count as torn, even if all of them were written
//   writer := 0       the data are whole, the version counts, and the next writer takes the word over
//   notify            waiters check again after a slice
//
// Thread safety: any thread. An object only refers to the shared words, so it is made where it is needed.
#pragma once

#include <cstdint>
#include <span>

#include "memory/arena.h"

namespace shmtree::shared_array {

struct alignas(64) Versioned {
  std::uint64_t magic;
  std::atomic<std::uint64_t> sequence;   // twice the version; odd during a write, or if torn
  std::atomic<std::uint32_t> writer;     // a lock word; waiters sleep at `changed`
  std::atomic<std::uint32_t> reader;     // likewise, of an overtaken reader
  std::atomic<std::int32_t> writer_pid;  // of the last writer; for errors
  std::uint32_t reserved[9];
  memory::Event changed;  // a write has ended or was given up, or a reader is done
};
static_assert(sizeof(Versioned) == 128);
constexpr std::uint64_t kVersionedMagic = 0x736e737265766d73;  // "smversns"

// The part of the data that a write stores.
enum class Extent : bool {
  kPart,   // some of the data, or values that depend on the data
  kWhole,  // all of the data, whatever they were
};

class Versions {
 public:
  // Returns the size of a block for `data_bytes` of data.
  static constexpr std::uint64_t block_bytes(std::uint64_t data_bytes) noexcept {
    return memory::round_up(data_bytes, alignof(Versioned)) + sizeof(Versioned);
  }
  // Initialises a block that no other process knows yet to version 0.
  static void init(std::byte* block, std::uint64_t data_bytes) noexcept;
  // Returns the versions of a block, which the caller holds as long as it uses the object. Code::kInvalid if the block
  // has none.
  static Result<Versions> of(const memory::Lease& block, std::uint64_t data_bytes);

  // Begins a write, once no other process or thread is writing.
  //   kTimeout      names the writer
  //   kPeerDied     the data are torn, and the write is not of the whole data
  //   kInterrupted  a hook ended the wait
  Status begin_write(const platform::WaitContext& wait, Extent extent = Extent::kPart) const;
  // Ends a write. The data become the next version, or count as torn if they are not `whole`. Code::kInvalid in a
  // process that has not begun the write, such as a child that was forked meanwhile.
  Status end_write(bool whole) const noexcept;

  // Copies the data to `out`, which has their size, and returns their version. Calls the blocking hooks around copies
  // above 64 KiB.
  //   kTimeout      writes followed each other without a pause, or a writer is stopped; names the writer
  //   kPeerDied     the data are torn; returned at once
  //   kInterrupted  a hook ended the wait
  Result<std::uint64_t> read(std::byte* out, const platform::WaitContext& wait) const;
  // Waits for a version above `known`, and returns the newest. kTimeout, kInterrupted.
  Result<std::uint64_t> wait_for_newer(std::uint64_t known, const platform::WaitContext& wait) const;

  std::uint64_t bytes() const noexcept { return bytes_; }
  // Number of writes that were completed.
  std::uint64_t version() const noexcept { return platform::load_acquire(shared_->sequence) / 2; }
  // Returns true if the writer of an unfinished write died or gave up.
  bool is_torn() const noexcept;

 private:
  Versions(memory::Arena& arena, std::byte* data, std::uint64_t bytes, Versioned* shared) noexcept
      : arena_(&arena), data_(data), bytes_(bytes), shared_(shared) {}
  bool is_alive(std::uint32_t word) const noexcept;
  bool take(std::atomic<std::uint32_t>& word, memory::Identity me) const noexcept;
  void unlock(std::atomic<std::uint32_t>& word) const noexcept;
  bool is_torn_at(std::uint64_t sequence) const noexcept;
  Error timed_out(const char* what) const;
  static Error torn(int writer_pid);

  memory::Arena* arena_;
  std::byte* data_;
  std::uint64_t bytes_;
  Versioned* shared_;
};

}  // namespace shmtree::shared_array
