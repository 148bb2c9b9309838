// The metadata of a frame as columns of plain values, in memory. The functions in metadata_writer.h and
// metadata_reader.h convert them to and from a Cap'n Proto message. The schema, schema/shmtree.capnp, describes each
// column.
#pragma once

#include <cstdint>
#include <span>

namespace shmtree::format {

struct ArrayDescriptor {
  std::uint8_t dtype = 0;
  std::uint8_t flags = 0;  // ArrayFlag
  std::uint8_t ndim = 0;
  std::uint32_t buffer = 0;
};

// A range of bytes in another block. `reference` is an index into the message's list of blocks, which is sent with the
// frame but is not part of it.
struct External {
  std::uint32_t reference = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct FrameColumns {
  std::span<const std::uint8_t> kinds{};
  std::span<const std::uint8_t> lengths{};
  std::span<const char> text{};
  std::span<const std::int64_t> ints{};
  std::span<const double> floats{};
  std::span<const ArrayDescriptor> arrays{};
  std::span<const std::uint64_t> buffers{};
  std::span<const std::int64_t> views{};
  std::span<const External> externals{};
};

}  // namespace shmtree::format
