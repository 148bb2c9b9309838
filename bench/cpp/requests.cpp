// Requests and replies of a Service, for bench/requests.py.
//
//   bench_requests serve <name>           answers with the entry "step" of each request, until it is killed
//   bench_requests ask <name> <count>     asks one at a time; prints requests/s, then p50 and p99 in µs
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

int serve(const std::string& name) {
  const shmtree::Service service = shmtree::Service::create({.name = name}).value();
  for (;;) {
    shmtree::Request request = service.get().value();
    request.reply(request.value()["step"].as<int>()).value();
  }
}

int ask(const std::string& name, int count) {
  const shmtree::Client client = shmtree::Client::open(name, {.timeout = 60s}).value();
  std::vector<double> took_us;
  took_us.reserve(static_cast<std::size_t>(count));
  const auto began = Clock::now();
  for (int i = 0; i < count; ++i) {
    const auto asked = Clock::now();
    client.call(shmtree::Dict{{"step", 1}, {"reward", 1.0}}, 60s).value();
    took_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - asked).count());
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::ranges::sort(took_us);
  std::printf("%g %g %g\n", count / seconds, took_us[took_us.size() / 2], took_us[took_us.size() * 99 / 100]);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 2 ? arguments[1] : "";
  if (what == "serve") return serve(arguments[2]);
  if (what == "ask" && count > 3 && std::atoi(arguments[3]) > 0) return ask(arguments[2], std::atoi(arguments[3]));
  std::fputs("usage: bench_requests serve <name> | ask <name> <count>\n", stderr);
  return 64;
}
