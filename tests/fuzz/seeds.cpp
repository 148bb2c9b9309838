// Where the searches begin: writes frames and recordings as their writers make them, and single words overwritten, into
// <folder>/frame, <folder>/recording and <folder>/arena.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "support/frames.h"
#include "support/recordings.h"

using namespace shmtree;

namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// As frame.cpp reads it: the number of metadata words, then all of the frame but its header.
std::string frame_of(const std::function<void(format::FrameBuilder&)>& add) {
  format::FrameBuilder builder;
  add(builder);
  const test::Bytes frame = test::bytes_of(builder);
  const auto words = static_cast<std::uint16_t>(builder.metadata_bytes() / 8);
  std::string seed(reinterpret_cast<const char*>(&words), sizeof words);
  return seed.append(reinterpret_cast<const char*>(frame.data()) + 16, frame.size() - 16);
}

void write_frames(const std::filesystem::path& folder) {
  const test::Sample sample;
  const auto list_of = [](std::uint64_t items, const std::function<void(format::FrameBuilder&)>& add) {
    return frame_of([&](format::FrameBuilder& builder) {
      builder.add_kind(Kind::kList);
      builder.add_length(items);
      add(builder);
    });
  };
  write(folder / "nothing", frame_of([](auto& builder) { builder.add_none_node(); }));
  write(folder / "dict", frame_of([](auto& builder) { test::add_small_dict(builder); }));
  write(folder / "scalars", list_of(test::kScalarNodes, [](auto& builder) { test::add_scalars(builder); }));
  write(folder / "containers", list_of(test::kContainerNodes, [](auto& builder) { test::add_containers(builder); }));
  write(folder / "references", list_of(test::kReferenceNodes, [](auto& builder) { test::add_references(builder); }));
  write(folder / "arrays", list_of(test::kArrayNodes, [&](auto& builder) { test::add_arrays(builder, sample); }));
  write(folder / "everything", frame_of([&](auto& builder) { test::add_everything(builder, sample); }));
}

// As arena.cpp reads it: what is tried, then region, word and value.
void write_words(const std::filesystem::path& folder) {
  constexpr std::uint64_t kValues[] = {0, ~std::uint64_t{0}, 0x8000000000000001};
  constexpr int kRegions = 21;
  for (int region = 0; region < kRegions; ++region) {
    for (const std::uint64_t value : kValues) {
      std::string seed(2, '\0');
      for (std::uint16_t word = 0; word < 16; ++word) {
        seed += static_cast<char>(region);
        seed.append(reinterpret_cast<const char*>(&word), sizeof word);
        seed.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      write(folder / (std::to_string(region) + "-" + std::to_string(value >> 60)), seed);
    }
  }
}

// As recording.cpp reads it: all but the first bytes of the file.
void write_recordings(const std::filesystem::path& folder) {
  const auto whole_frame = [](const std::function<void(format::FrameBuilder&)>& add) {
    format::FrameBuilder builder;
    add(builder);
    const test::Bytes frame = test::bytes_of(builder);
    return std::string(reinterpret_cast<const char*>(frame.data()), frame.size());
  };
  const test::Sample sample;
  const std::string bytes =
      test::small_recording(whole_frame([](auto& builder) { builder.add_none_node(); }),
                            whole_frame([](auto& builder) { test::add_small_dict(builder); }),
                            whole_frame([&](auto& builder) { test::add_everything(builder, sample); }));
  write(folder / "whole", bytes.substr(test::kMagic.size()));
  write(folder / "cut off", bytes.substr(test::kMagic.size(), bytes.size() / 2));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::filesystem::path folder = arguments[1];
  for (const char* name : {"frame", "arena", "recording"}) std::filesystem::create_directories(folder / name);
  write_frames(folder / "frame");
  write_words(folder / "arena");
  write_recordings(folder / "recording");
}
