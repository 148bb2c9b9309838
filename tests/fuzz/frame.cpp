// Coverage-guided search for a frame that crashes its readers.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cost.h"
#include "format/standalone.h"
#include "support/frame_walk.h"
#include "value/codec.h"

using namespace shmtree;

// Requires that a valid frame is also valid after conversion to a stand-alone frame.
static void make_alone(std::span<const std::byte> frame, format::Blocks blocks) {
  format::CheckedFrame checked;
  if (!checked.load(frame, blocks).ok()) return;
  format::Standalone alone(checked, blocks);
  if (!alone.finish().ok()) return;
  std::vector<std::byte> made(alone.total_bytes());
  alone.write(made.data());
  format::CheckedFrame again;
  if (!again.load(made).ok() || !again.contents().is_standalone || !test::walk_frame(made).ok()) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The input is a frame without its header. A matching header is added, so that the search does not waste time on it.
  // The first two bytes of the input are the size of the metadata or, with the highest bit set, the padding of a flat
  // frame.
  if (size < 2) return 0;
  const fuzz::Cost cost;
  std::uint16_t words;
  std::memcpy(&words, data, 2);
  std::vector<std::byte> frame(16 + size - 2);
  std::memcpy(frame.data() + 16, data + 2, size - 2);
  const bool is_flat = (words & 0x8000) != 0;
  format::write_header(frame.data(), is_flat ? words & 0xff : words * 8u, frame.size(), is_flat ? format::kFlat : 0);
  (void)test::walk_frame(frame).ok();
  const std::vector<std::byte> block(4096);
  const std::span<const std::byte> blocks[] = {block, block};
  make_alone(frame, blocks);
  auto item = value::decode(frame, nullptr, blocks);
  if (item.ok()) {
    for (const Item& part : *item) {
      (void)part.try_as<std::string>().ok();
      (void)part.capnp_segments().ok();
    }
  }
  return 0;
}
