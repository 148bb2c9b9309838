#include "platform/spin.h"

#include <charconv>
#include <string>

#include "platform/private_directory.h"

namespace shmtree::platform {

Status SpinSetting::set_ns(std::int64_t ns) {
  if (ns < 0) return Error{Code::kInvalid, "spin is " + std::to_string(ns) + " ns; it must not be negative"};
  ns_.store(ns, std::memory_order_relaxed);
  return success();
}

Result<std::int64_t> spin_ns_of_environment() {
  const std::string text = environment_variable("SHMTREE_SPIN");
  if (text.empty()) return std::int64_t{0};
  double seconds = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (problem == std::errc() && end == text.data() + text.size() && seconds >= 0) return spin_ns_of(seconds);
  return Error{Code::kInvalid,
               "the environment variable SHMTREE_SPIN is \"" + text + "\"; it must be a number of seconds, 0 or more"};
}

}  // namespace shmtree::platform
