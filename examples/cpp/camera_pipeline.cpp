// A camera, a filter and a sink, one process each. The camera writes a frame once. The filter changes it in place and
// forwards it, and the sink reads it in place.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

constexpr std::int64_t kHeight = 480, kWidth = 640;
constexpr int kFrames = 30;

void film(const shmtree::Sender& frames) {
  for (int number = 0; number < kFrames; ++number) {
    // Memory of the arena, which put() transfers instead of copying.
    const shmtree::NewArray image = frames.new_array(shmtree::DType::kUInt8, {kHeight, kWidth}).value();
    std::ranges::fill(image.span<std::uint8_t>(), static_cast<std::uint8_t>(number));
    frames.put(shmtree::Dict{{"number", number}, {"image", image}}).value();
  }
}

void filter(const shmtree::Receiver& frames, const shmtree::Sender& results) {
  for (;;) {
    auto frame = frames.get();
    if (!frame) break;
    const auto pixels = (*frame)["image"].span<std::uint8_t>();  // this process has the only reference, so it may write
    for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(255 - pixel);
    results.put(shmtree::Dict{{"inverted", true}, {"frame", std::move(*frame)}}).value();
  }
}

int main() {
  const shmtree::Arena arena = shmtree::Arena::create({.max_bytes = 64 << 20}).value();
  auto [frames, frames_of_filter] = shmtree::make_pair({.capacity = 4, .arena = arena});
  auto [results, results_of_sink] = shmtree::make_pair({.capacity = 4, .arena = arena});
  const auto start = [&](auto run) {
    if (fork() != 0) return;
    run();
    frames.close(), frames_of_filter.close(), results.close(), results_of_sink.close();
    _exit(0);
  };
  start([&] { film(frames); });
  start([&] {
    frames.close();
    filter(frames_of_filter, results);
  });
  frames.close(), frames_of_filter.close(), results.close();

  int seen = 0;
  for (const shmtree::Item& item : results_of_sink) {
    const auto pixels = item["frame"]["image"].span<const std::uint8_t>();
    const int number = item["frame"]["number"].as<int>();
    const bool right = std::ranges::all_of(pixels, [&](std::uint8_t pixel) { return pixel == 255 - number; });
    seen += right && item.get_or("inverted", false) ? 1 : 0;
  }
  while (wait(nullptr) > 0) {
  }
  std::printf("%d frames of %d\n", seen, kFrames);
  return seen == kFrames ? 0 : 1;
}
