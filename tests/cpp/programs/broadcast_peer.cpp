// Shares a Broadcast with the process that started it.
//
//   broadcast_peer read <name>    prints each message until the stream ends
//   broadcast_peer make <name>    creates it, and puts three messages on command
//   broadcast_peer given <name>   receives both through the channel of that name, and answers the first message
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string in_words(const Item& message) {
  const auto values = message["values"].as<std::vector<double>>();
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return std::to_string(message["n"].as<int>()) + " " + std::to_string(static_cast<long>(sum));
}

int read(const std::string& name) {
  const Subscriber reader = open_broadcast(name).value().subscribe().value();
  say("ready");
  for (const Item& message : reader) say(in_words(message));
  say("end");
  return 0;
}

int make(const std::string& name) {
  const Broadcast broadcast = make_broadcast({.name = name});
  say("ready");
  if (std::getchar() == EOF) return 1;
  for (int n = 0; n < 3; ++n) {
    broadcast.put(Dict{{"n", n}, {"values", std::vector<double>(5'000, n)}}, 60s).value();
  }
  broadcast.wait_for_all_ack(60s).value();
  return 0;
}

int given(const std::string& name) {
  const Item item = open_receiver(name).value().get(60s).value();
  const auto reader = item["reader"].as<Subscriber>();
  const auto broadcast = item["broadcast"].as<Broadcast>();
  say("ready");
  const std::string answer = in_words(reader.get(60s).value());
  broadcast.put(answer, 60s).value();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 64;
  const std::string how = arguments[1], name = arguments[2];
  return how == "read" ? read(name) : how == "make" ? make(name) : given(name);
}
