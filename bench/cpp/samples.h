// The messages of the C++ measurements: the samples of bench/workloads.py, with a list and a tuple in place of the set
// and the namedtuple.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shmtree/value.h"

namespace shmtree::bench {

// Returns an array that its Value owns, with elements that depend only on `first`.
template <class T>
Value numbers(std::vector<std::int64_t> shape, int first) {
  std::size_t count = 1;
  for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  auto kept = std::make_shared<std::vector<T>>(count);
  for (std::size_t i = 0; i < count; ++i) (*kept)[i] = static_cast<T>((i * 7 + static_cast<std::size_t>(first)) % 251);
  ArrayRef array = array_ref(kept->data(), std::move(shape));
  array.owner = std::move(kept);
  return array;
}

// Returns one step of an agent with image observations.
inline Value transition() {
  return Dict{{"obs", numbers<std::uint8_t>({84, 84, 4}, 1)},
              {"next_obs", numbers<std::uint8_t>({84, 84, 4}, 2)},
              {"action", 3},
              {"reward", 1.0},
              {"terminated", false},
              {"truncated", false},
              {"info", Dict{{"episode", "ep-12"}, {"step", 12345}, {"state", numbers<float>({18}, 3)}}}};
}

// Returns a batch in groups: twelve arrays of float32, texts, numbers and small sequences, under about 20 keys in 3
// levels.
inline Value nested_batch() {
  const auto group = [](int first) {
    return Dict{{"position", numbers<float>({32, 17}, first)},
                {"velocity", numbers<float>({32, 17}, first + 1)},
                {"target",
                 Dict{{"mean", numbers<float>({32, 17}, first + 2)}, {"scale", numbers<float>({32, 17}, first + 3)}}}};
  };
  return Dict{{"observations", group(0)},
              {"next_observations", group(4)},
              {"actions", numbers<float>({32, 17}, 8)},
              {"log_probs", numbers<float>({32, 17}, 9)},
              {"advantages", numbers<float>({32, 17}, 10)},
              {"returns", numbers<float>({32, 17}, 11)},
              {"meta", Dict{{"environment", "HalfCheetah-v4"},
                            {"policy", Dict{{"version", 417}, {"name", "sac"}, {"entropy", 0.2}}},
                            {"range", Tuple{0, 32}},
                            {"tags", List{"train", "on-policy"}}}},
              {"episode", "ep-12"},
              {"step", 12345},
              {"gamma", 0.99}};
}

inline Value five_scalars() {
  return Dict{{"reward", 1.0}, {"action", 3}, {"terminated", false}, {"step", 12345}, {"episode", "ep-12"}};
}

// Returns one step of twelve agents: 24 repeated keys and 36 small arrays.
inline Value twelve_agents() {
  Dict agents;
  for (int i = 0; i < 12; ++i) {
    const std::string episode = "ep-" + std::to_string(i);
    agents.add("agent_" + std::to_string(i),
               Dict{{"obs", Dict{{"state", numbers<float>({17}, i)}, {"mask", numbers<std::uint8_t>({8}, i)}}},
                    {"action", numbers<float>({6}, i)},
                    {"reward", 0.25 * i},
                    {"terminated", false},
                    {"info", Dict{{"episode", episode}, {"step", 1000 + i}, {"return", Tuple{1.5, i}}}}});
  }
  return agents;
}

// Returns `count` bytes that arrive as Python's bytes.
inline Value plain_bytes(std::size_t count) {
  return Bytes{std::string(count, 'x')};
}

struct Sample {
  const char* name;
  Value (*make)();
};
inline constexpr Sample kSamples[] = {
    {"transition", transition}, {"nested_batch", nested_batch}, {"scalars", five_scalars}, {"agents", twelve_agents}};

}  // namespace shmtree::bench
