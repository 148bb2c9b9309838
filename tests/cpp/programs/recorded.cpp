// Reads a recording. Prints the channel of each message, a number in it and the sum of its array, which it reads in
// place in the mapped file.
//
//   recorded <file>
#include <cstdio>
#include <string>

#include "shmtree/shmtree.h"

int main(int count, char** arguments) {
  if (count != 2) return 64;
  const auto recording = shmtree::Recording::open(arguments[1]);
  if (!recording) {
    std::fprintf(stderr, "%s\n", recording.error().message.c_str());
    return 1;
  }
  for (const shmtree::RecordedMessage& message : *recording) {
    const shmtree::Item item = message.load().value();
    const shmtree::ArrayView array = item["obs"].view();
    const bool is_view = array.read_only && array.data > message.frame.data() &&
                         array.data < message.frame.data() + message.frame.size();
    double sum = 0;
    for (const double each : item["obs"].span<const double>()) sum += each;
    std::printf("%s %u %d %.0f %s\n", std::string(message.channel).c_str(), message.sequence, item["step"].as<int>(),
                sum, is_view ? "a view" : "a copy");
  }
  for (const auto& [name, messages] : recording->missed()) {
    std::printf("%s: %llu missed\n", name.c_str(), static_cast<unsigned long long>(messages));
  }
  std::puts(recording->whole() ? "whole" : "cut off");
}
