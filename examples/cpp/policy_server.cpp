// An inference server, and a client that asks it for actions. The server answers the requests that wait as one batch.
//
//   policy_server                starts a server, and asks it
//   policy_server serve <name>   serves until it is stopped; start several, and each request goes to one of them
//   policy_server ask <name>     asks the servers of that name, which may be in Python
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

using namespace std::chrono_literals;

[[noreturn]] void serve(const std::string& name) {
  const shmtree::Service service =
      shmtree::Service::create({.name = name, .keep_open = shmtree::KeepOpen::kBoth}).value();
  for (;;) {
    std::vector<shmtree::Request> batch;
    batch.push_back(service.get().value());
    while (batch.size() < 32) {
      auto next = service.get(0s);
      if (!next) break;
      batch.push_back(std::move(next).value());
    }
    for (shmtree::Request& request : batch) {
      const auto observation = request.value().try_as<std::vector<float>>();
      if (!observation) {
        request.fail(observation.error().message, "TypeError").ok();
        continue;
      }
      float sum = 0;
      for (const float each : *observation) sum += each;
      if (!request.reply(shmtree::Dict{{"action", sum > 0 ? 1 : 0}})) std::fprintf(stderr, "a client is gone\n");
    }
  }
}

int ask(const std::string& name) {
  const shmtree::Client client = shmtree::Client::open(name, {.timeout = 60s}).value();
  int ones = 0;
  for (int step = 0; step < 100; ++step) {
    const std::vector<float> observation(8, step % 2 == 0 ? 1.0F : -1.0F);
    const auto reply = client.call(observation, 60s, 5s);  // asks again if the server was killed
    if (!reply) {
      std::fprintf(stderr, "%s\n", reply.error().message.c_str());
      return 1;
    }
    ones += (*reply)["action"].as<int>();
  }
  std::printf("action 1 in %d of 100 steps\n", ones);
  return ones == 50 ? 0 : 1;
}

int main(int count, char** arguments) {
  const std::string what = count > 2 ? arguments[1] : "", name = count > 2 ? arguments[2] : "";
  if (what == "serve") serve(name);
  if (what == "ask") return ask(name);
  const std::string own = "policy-" + std::to_string(getpid());
  const pid_t server = fork();
  if (server == 0) serve(own);
  const int status = ask(own);
  kill(server, SIGTERM);
  waitpid(server, nullptr, 0);
  return status;
}
