// Measures the cost of a frame without objects: building, writing, opening and walking 250 nodes, and a small dict.
// Prints nanoseconds per message, the best of several rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "format/frame_builder.h"
#include "format/frame_reader.h"

using namespace shmtree;

namespace {

// Adds twelve groups of twenty scalars with repeated keys, like agents in an environment: 1 + 12 * (1 + 20) nodes.
void add_groups(format::FrameBuilder& builder) {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> made;
    for (int i = 0; i < 20; ++i) made.push_back("field_" + std::to_string(i));
    return made;
  }();
  builder.add_kind(Kind::kList);
  builder.add_length(12);
  for (int group = 0; group < 12; ++group) {
    builder.add_kind(Kind::kStrDict);
    builder.add_length(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      builder.add_name(keys[i]);
      if (i % 2 == 0) {
        builder.add_float_node(static_cast<double>(i));
      } else {
        builder.add_int_node(static_cast<std::int64_t>(i));
      }
    }
  }
}

// Adds the same number of nodes without keys.
void add_list(format::FrameBuilder& builder) {
  builder.add_kind(Kind::kList);
  builder.add_length(249);
  for (int i = 0; i < 83; ++i) {
    builder.add_int_node(i);
    builder.add_float_node(i);
    builder.add_bool_node(true);
  }
}

void add_five(format::FrameBuilder& builder) {
  builder.add_kind(Kind::kStrDict);
  builder.add_length(5);
  builder.add_name("reward");
  builder.add_float_node(1.0);
  builder.add_name("done");
  builder.add_bool_node(false);
  builder.add_name("step");
  builder.add_int_node(17);
  builder.add_name("episode");
  builder.add_str_node("ep-12", 5);
  builder.add_name("value");
  builder.add_float_node(0.5);
}

void add_arrays(format::FrameBuilder& builder) {
  static float values[20][16];
  const std::int64_t shape[] = {16};
  builder.add_kind(Kind::kList);
  builder.add_length(20);
  for (auto& row : values) {
    builder.add_kind(Kind::kArray);
    builder.add_array({.data = row, .shape = shape, .ndim = 1, .dtype = DType::kFloat32});
  }
}

double sum = 0;

void read_node(format::FrameReader& reader) {
  switch (reader.next_kind()) {
    case Kind::kInt: sum += static_cast<double>(reader.next_int()); break;
    case Kind::kFloat: sum += reader.next_float(); break;
    case Kind::kStr: sum += static_cast<double>(reader.next_string().size()); break;
    case Kind::kArray: {
      format::ArrayInfo info;
      if (reader.next_array(info)) sum += static_cast<double>(info.nbytes);
      break;
    }
    case Kind::kList:
      for (std::uint64_t n = reader.next_count(); n > 0; --n) read_node(reader);
      break;
    case Kind::kStrDict:
      for (std::uint64_t n = reader.next_count(); n > 0; --n) {
        sum += reader.next_name().index;
        read_node(reader);
      }
      break;
    default: break;
  }
}

template <class Work>
double best_ns(Work work) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRepeats = 2000;
  double best = 1e18;
  for (int round = 0; round < 20; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kRepeats; ++i) work();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kRepeats);
  }
  return best;
}

void measure(const char* name, void (*add)(format::FrameBuilder&)) {
  format::FrameBuilder builder;
  std::vector<std::byte> frame;
  const auto build = [&] {
    builder.clear();
    add(builder);
    if (!builder.finish().ok()) std::abort();
  };
  build();
  frame.resize(builder.total_bytes());
  const double columns = best_ns([&] {
    builder.clear();
    add(builder);
  });
  const double encode = best_ns([&] {
    build();
    builder.write(frame.data());
  });
  const double open = best_ns([&] {
    if (!format::FrameReader::open(frame).ok()) std::abort();
  });
  const double decode = best_ns([&] {
    auto reader = format::FrameReader::open(frame);
    read_node(*reader);
    if (!reader->finish().ok()) std::abort();
  });
  std::printf("%-22s %6zu bytes  columns %6.0f  encode %6.0f  open %6.0f  open and walk %6.0f ns\n", name, frame.size(),
              columns, encode, open, decode);
}

}  // namespace

int main() {
  measure("five scalars", add_five);
  measure("list of 249 scalars", add_list);
  measure("12 dicts of 20 scalars", add_groups);
  measure("20 arrays of 64 bytes", add_arrays);
  return sum == 0.5 ? 1 : 0;
}
