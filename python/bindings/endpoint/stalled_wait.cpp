#include "bindings/endpoint/stalled_wait.h"

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/cpython/errors.h"
#include "platform/clock.h"
#include "platform/machine.h"

namespace shmtree::python {

using channel::End;

namespace {

std::atomic<std::int64_t> unused_after_ns{10'000'000'000};
constexpr std::size_t kMaxNamed = 8;

std::string seconds_of(std::int64_t ns) {
  return std::to_string(std::max<std::int64_t>(ns, 0) / 1'000'000'000) + " s";
}

std::string named(const std::vector<int>& pids) {
  std::string text = pids.size() == 1 ? "process " : "processes ";
  for (std::size_t i = 0; i < std::min(pids.size(), kMaxNamed); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(pids[i]);
    if (pids[i] == platform::process_id()) text += " (this one)";
  }
  if (pids.size() > kMaxNamed) text += " and " + std::to_string(pids.size() - kMaxNamed) + " others";
  return text;
}

std::string of_unused(const std::string& end, const std::vector<int>& pids, std::uint64_t in_transit) {
  const bool one = pids.size() == 1;
  std::string text = named(pids) + ", which " + (one ? "has a " : "have a ") + end + " and never used it";
  if (in_transit != 0) text += " (" + std::to_string(in_transit) + " more were pickled and not loaded)";
  text +=
      ". The stream cannot end while a " + end + " is open: call close() on it" +
      " in processes that do not use it, such as one that only starts others, or shmtree.keep_only() in workers of a "
      "pool";
  return text;
}

std::string of_unloaded(const std::string& end, const memory::InTransit& sent) {
  const std::string pickler = sent.pid == 0 ? "a process that has ended" : "process " + std::to_string(sent.pid);
  return "a " + end + " that " + pickler + " pickled " + seconds_of(sent.age_ns) + " ago and no process has loaded (" +
         std::to_string(sent.count) + " in all). It keeps the stream open until it is loaded, or that process ends";
}

bool warn(channel::Channel& channel, End peers, std::int64_t waited_ns) {
  const std::string end = peers == End::kSending ? "sender" : "receiver";
  std::vector<int> pids = channel.ends().unused_pids(peers);
  const memory::InTransit sent = channel.ends().in_transit(peers);
  if (pids.empty() && sent.count == 0) pids = channel.ends().member_pids(peers);
  const std::string peer_text = pids.empty() ? of_unloaded(end, sent) : of_unused(end, pids, sent.count);
  return without_unwinding([&] {
           return PyErr_WarnFormat(error_types().unused_end_warning, 1, "waited %s for %s",
                                   seconds_of(waited_ns).c_str(), peer_text.c_str());
         }) == 0;
}

}  // namespace

std::int64_t count_stalled_wait(StalledWait& stalled_wait, std::uint64_t passed, std::int64_t since_ns) {
  if (stalled_wait.was_warned.load(std::memory_order_relaxed)) return 0;
  const std::int64_t now = platform::monotonic_ns();
  const std::int64_t counted_to = stalled_wait.counted_to_ns.exchange(now);
  if (stalled_wait.passed.exchange(passed) != passed) {
    stalled_wait.waited_ns.store(0);
    return 0;
  }
  const std::int64_t more = std::max<std::int64_t>(now - std::max(since_ns, counted_to), 0);
  const std::int64_t waited = stalled_wait.waited_ns.fetch_add(more) + more;
  return waited < unused_after_ns.load(std::memory_order_relaxed) || stalled_wait.was_warned.exchange(true) ? 0
                                                                                                            : waited;
}

bool warn_of_stalled_wait(Endpoint* self, End waiting, std::int64_t since_ns, Waiter waiter) {
  StalledWait& stalled_wait = self->stalled_wait;
  channel::Channel& channel = self->port.channel();
  const End peers = channel::other(waiting);
  if (stalled_wait.was_warned.load(std::memory_order_relaxed) || !channel.ends().can_end(peers)) return true;
  const bool is_forgotten =
      channel.ends().is_forgotten(peers) || (waiter == Waiter::kOnlyThread && channel.ends().is_only_with_peers(peers));
  if (!is_forgotten) {
    stalled_wait.counted_to_ns.store(platform::monotonic_ns());
    stalled_wait.passed.store(channel.passed(peers));
    stalled_wait.waited_ns.store(0);
    return true;
  }
  const std::int64_t waited = count_stalled_wait(stalled_wait, channel.passed(peers), since_ns);
  return waited == 0 || warn(channel, peers, waited);
}

PyObject* note_wait(PyObject* self, End waiting, PyObject* seconds) {
  const double waited = PyFloat_AsDouble(seconds);
  if (waited == -1.0 && PyErr_Occurred()) return nullptr;
  const endpoint::Call call(as_endpoint(self)->port);
  if (as_endpoint(self)->port.closed(waiting)) Py_RETURN_NONE;
  const auto since_ns = platform::monotonic_ns() - static_cast<std::int64_t>(waited * 1e9);
  if (!warn_of_stalled_wait(as_endpoint(self), waiting, since_ns, Waiter::kOther)) return nullptr;
  Py_RETURN_NONE;
}

void set_unused_after(double seconds) {
  unused_after_ns = static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace shmtree::python
