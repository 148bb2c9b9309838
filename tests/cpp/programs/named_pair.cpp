// Makes a named channel, puts a message, and is done when it has received one.
//
//   named_pair <name> [yes | no: whether pickles are allowed]
#include <chrono>
#include <cstdio>
#include <string>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;

int main(int count, char** arguments) {
  if (count < 2) return 64;
  shmtree::PairOptions options;
  options.name = arguments[1];
  if (count > 2) options.allow_pickle = std::string(arguments[2]) == "yes";
  auto [sender, receiver] = shmtree::make_pair(options);
  std::puts("made");
  std::fflush(stdout);
  return receiver.get(60s) ? 0 : 1;
}
