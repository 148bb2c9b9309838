// A simulator as a user would write it: receives actions, sends back transitions, until the stream of actions ends.
//
//   simulator <name of the actions' channel> <name of the transitions' channel>
#include <chrono>
#include <cstdio>

#include "shmtree/array.h"
#include "shmtree/shmtree.h"

using namespace std::chrono_literals;

int main(int count, char** arguments) {
  if (count != 3) return 64;
  auto actions = shmtree::open_receiver(arguments[1]);
  auto transitions = shmtree::open_sender(arguments[2]);
  if (!actions || !transitions) {
    std::fprintf(stderr, "%s\n", (actions ? transitions.error() : actions.error()).message.c_str());
    return 1;
  }
  for (std::int64_t step = 0;; ++step) {
    const auto action = actions->get(20s);
    if (!action) return action.code() == shmtree::Code::kClosed ? 0 : 2;
    auto frame = transitions->new_array(shmtree::DType::kUInt8, {64, 64, 3}, 20s).value();
    const std::span<std::uint8_t> pixels = frame.span<std::uint8_t>();
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(step + i);
    xt::xarray<double> doubled = action->at(std::size_t{0}).array<const double>() * 2.0;
    const shmtree::Dict transition{
        {"step", step},
        {"frame", frame},
        {"doubled", doubled},
        {"info", shmtree::Dict{{"label", (*action)["label"].as<std::string>()}, {"done", step == 2}, {"none", {}}}},
        {"list", shmtree::List{1, 2.5, "three", shmtree::Bytes{"four"}, shmtree::Tuple{true, nullptr}}},
    };
    const auto ticket = transitions->put(transition, 20s);
    if (!ticket) {
      std::fprintf(stderr, "%s\n", ticket.error().message.c_str());
      return 3;
    }
  }
}
