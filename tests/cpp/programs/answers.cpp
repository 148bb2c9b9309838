// Receives ends from Python by a named channel, and uses them until the stream ends.
//
//   answers <name>
#include <chrono>
#include <string>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;

int main(int count, char** arguments) {
  if (count < 2) return 64;
  auto receiver = shmtree::open_receiver(arguments[1]).value();
  for (const shmtree::Item& request : receiver) {
    const shmtree::Item end = request["end"];
    const auto kind = request["kind"].as<std::string>();
    if (kind == "sender") {
      end.as<shmtree::Sender>().put("from C++", 60s).value();
    } else if (kind == "receiver") {
      if (end.as<shmtree::Receiver>().get(60s).value().as<std::string>() != "to C++") return 1;
    } else if (kind == "queue") {
      end.as<shmtree::Queue>().put("from C++", 60s).value();
    } else if (end.try_as<shmtree::Sender>().code() != shmtree::Code::kInvalid ||
               end.try_as<shmtree::Queue>().code() != shmtree::Code::kInvalid) {
      return 2;
    }
  }
  return 0;
}
