// A server or a client of a service, for tests with Python.
//
//   service_peer serve <name> [both]      answers until it is killed; prints "serving"
//   service_peer call <name> <value>      prints the reply, or "code kind dropped: message"
//   service_peer many <name> <count>      sends <count> requests at once, and prints the sum of the replies
//
// A request is a dict with "do": "double" returns twice the array "values", "pid" the process id, "fail" fails with a
// ValueError, "drop" drops the request, "hold" never answers, "exit" exits without an answer.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
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

int serve(const std::string& name, bool both) {
  const Service service =
      Service::create({.name = name, .keep_open = both ? KeepOpen::kBoth : KeepOpen::kReceivers}).value();
  say("serving");
  std::vector<Request> held;
  for (;;) {
    Request request = service.get().value();
    const std::string what = request.value().get_or("do", "double");
    if (what == "double") {
      auto values = request.value()["values"].as<std::vector<double>>();
      for (double& each : values) each *= 2;
      if (!request.reply(Dict{{"values", values}})) say("client gone");
    } else if (what == "pid") {
      request.reply(getpid()).ok();
    } else if (what == "fail") {
      request.fail("no such thing", "ValueError").ok();
    } else if (what == "hold") {
      held.push_back(std::move(request));
      say("holding");
    } else if (what == "exit") {
      return 0;
    }
  }
}

int call(const std::string& name, const std::string& what) {
  const Client client = Client::open(name, {.timeout = 60s}).value();
  const auto reply = client.call(Dict{{"do", what}, {"values", std::vector<double>{1, 2.5}}}, 60s);
  if (!reply) {
    const Error& error = reply.error();
    say(std::string(name_of(error.code)) + " " + error.kind + " " + (error.dropped ? "dropped" : "not dropped") + ": " +
        error.message);
  } else if (reply->is_dict()) {
    for (const double each : (*reply)["values"].as<std::vector<double>>()) say(std::to_string(each));
  } else {
    say(std::to_string(reply->as<int>()));
  }
  return 0;
}

int many(const std::string& name, int count) {
  const Client client = Client::open(name, {.timeout = 60s}).value();
  std::vector<Pending> sent;
  for (int i = 0; i < count; ++i) {
    sent.push_back(client.submit(Dict{{"do", "double"}, {"values", std::vector<double>{i * 1.0}}}, 60s).value());
  }
  double sum = 0;
  for (const Pending& each : sent) sum += each.get(60s).value()["values"].as<std::vector<double>>()[0];
  say(std::to_string(sum));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 64;
  const std::string what = arguments[1], name = arguments[2];
  if (what == "serve") return serve(name, count > 3);
  if (count < 4) return 64;
  return what == "call" ? call(name, arguments[3]) : many(name, std::atoi(arguments[3]));
}
