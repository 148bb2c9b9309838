// Reads a shared list. Prints a number of each item and the sum of its array, which it reads in place in the mapped
// file.
//
//   shared_list_reader <file>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "shmtree/shmtree.h"

int main(int count, char** arguments) {
  if (count != 2) return 64;
  const auto list = shmtree::SharedList::load(arguments[1]);
  if (!list) {
    std::fprintf(stderr, "%s\n", list.error().message.c_str());
    return 1;
  }
  std::printf("%llu items\n", static_cast<unsigned long long>(list->size()));
  for (std::uint64_t number = 0; number < list->size(); ++number) {
    const shmtree::Item item = list->at(number).value();
    const std::span<const std::byte> frame = list->frame(number).value();
    const shmtree::ArrayView array = item["x"].view();
    const bool is_view = array.read_only && array.data > frame.data() && array.data < frame.data() + frame.size();
    double sum = 0;
    for (const double each : item["x"].span<const double>()) sum += each;
    std::printf("%d %.0f %s\n", item["id"].as<int>(), sum, is_view ? "a view" : "a copy");
  }
}
