// The seqlock of shared arrays (Versions, src/shared_array/versions.cpp): a reader copies the array while writers of
// two processes write one version each. Its copy is one whole version, and it never takes a live writer for dead.
#include "no_waking.h"
#include "process.h"
#include "shared_array/versions.cpp"

namespace {

using namespace model;
using namespace shmtree::shared_array;

constexpr std::uint64_t kWords = 2;

constinit Versioned words{};
std::uint64_t array[kWords];

Versions versions_of(std::uint32_t slot) {
  return {arena_of(slot), reinterpret_cast<std::byte*>(array), sizeof array, &words};
}

// Programs write the data as plain memory. The model writes relaxed atomic words, as C++ requires for a seqlock. To a
// processor the two are the same.
template <std::uint32_t slot>
void write() {
  const platform::WaitContext forever;
  const Versions versions = versions_of(slot);
  if (!versions.begin_write(forever)) return;
  const std::uint64_t next = words.sequence.load(std::memory_order_relaxed) / 2 + 1;
  for (auto& word : array) platform::store_once(word, next);
  static_cast<void>(versions.end_write(true));
}

template <std::uint32_t slot>
void read() {
  const platform::WaitContext forever;
  std::uint64_t copy[kWords];
  const auto version = versions_of(slot).read(reinterpret_cast<std::byte*>(copy), forever);
  MODEL_ASSERT(version && "a reader takes a live writer for dead");
  MODEL_ASSERT(copy[0] == copy[1] && "a reader accepts a torn copy");
  MODEL_ASSERT(copy[0] == *version && "a reader takes a version for another");
}

}  // namespace

void model::on_free(BlockId) {}

namespace shmtree::platform {

void copy_racing(void* out, const void* in, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes / 8; ++i)
    static_cast<std::uint64_t*>(out)[i] = load_once(static_cast<const std::uint64_t*>(in)[i]);
}
bool is_stopped(int) noexcept {
  return false;
}
int process_id() noexcept {
  return 1;
}

}  // namespace shmtree::platform

int main() {
  set_up(0);
  set_up(1);
  set_up(2);
  model::in_threads<write<0>, write<1>, read<2>>();
}
