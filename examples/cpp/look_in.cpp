// Observes every channel of this user: prints its depth and the end that limits it. Also reads the recordings that are
// named as arguments:
//
//   look_in [run.mcap...]
#include <shmtree/shmtree.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace {

std::string title(const shmtree::ObservedChannel& channel, std::size_t number) {
  return channel.names.empty() ? "channel " + std::to_string(number) : channel.names.front();
}

void print(const shmtree::ObservedArena& arena) {
  for (std::size_t i = 0; i < arena.channels.size(); ++i) {
    const shmtree::ObservedChannel& channel = arena.channels[i];
    if (!channel.refused.empty()) {
      std::printf("%s: %s\n", title(channel, i).c_str(), channel.refused.c_str());
      continue;
    }
    const std::string limit = channel.capacity == 0 ? "any number" : std::to_string(channel.capacity);
    std::printf("%s: %llu of %s, %.0f put/s, %.0f received/s", title(channel, i).c_str(),
                static_cast<unsigned long long>(channel.queued), limit.c_str(), channel.put_per_s,
                channel.received_per_s);
    if (channel.limiting) std::printf(", waits for its %s end", std::string(channel.limiting->end).c_str());
    std::puts("");
  }
}

bool read(const char* path) {
  const auto recording = shmtree::Recording::open(path);
  if (!recording) {
    std::fprintf(stderr, "%s\n", recording.error().message.c_str());
    return false;
  }
  std::size_t arrays = 0;
  for (const shmtree::RecordedMessage& message : *recording) {
    const shmtree::Item item = message.load().value();
    for (const shmtree::Item& each : item) arrays += each.is_array() ? 1 : 0;  // in the mapped file
  }
  for (const auto& [name, messages] : recording->channels()) {
    std::printf("%s: %s: %llu messages\n", path, name.c_str(), static_cast<unsigned long long>(messages));
  }
  std::printf("%s: %zu arrays%s\n", path, arrays, recording->whole() ? "" : ", cut off");
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!read(arguments[i])) return 1;
  }
  if (count > 1) return 0;
  shmtree::Observer observer;
  observer.look();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // interval for the rates
  for (const shmtree::ObservedArena& arena : observer.look()) print(arena);
}
