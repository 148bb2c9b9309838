// Shares a queue with the process that started it. Answers a job from the queue on each of three commands, and exits
// once its answers were received.
//
//   queue_peer open <handle> | name <name> | make [<name>]
#include <chrono>
#include <cstdio>
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

Queue queue_of(const std::string& how, const std::string& argument) {
  if (how == "open") return Queue::open(argument).value();
  if (how == "name") return open_queue(argument).value();
  return make_queue({.capacity = 8, .name = argument});
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 64;
  const Queue queue = queue_of(arguments[1], count > 2 ? arguments[2] : "");
  say(queue.handle().value());
  for (int i = 0; i < 3; ++i) {
    if (std::getchar() == EOF) return 1;  // the answer before is not to be taken for a job
    const Item job = queue.get(60s).value();
    auto values = job["values"].as<std::vector<double>>();
    for (double& each : values) each *= 2;
    queue.put(Dict{{"n", job["n"].as<int>()}, {"twice", values}}).value();
    queue.task_done().value();
    say("answered");
  }
  if (std::getchar() == EOF) return 1;
  queue.join(60s).value();
  queue.shutdown().value();
  say("joined");
}
