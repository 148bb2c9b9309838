#include "memory/deaths.h"

#include <algorithm>
#include <atomic>
#include <string>

namespace shmtree::memory {
namespace {

constinit std::atomic<Failure> g_exit_failure{Failure::kNone};

}  // namespace

void note_exit(Failure failure) noexcept {
  g_exit_failure.store(failure);
}

Failure exit_failure() noexcept {
  return g_exit_failure.load();
}

void append_killed(Error& error, std::int32_t pid) {
  error.message.append(error.message.ends_with(':') ? " " : ", ");
  if (pid > 0) {
    error.message.append(std::to_string(pid));
    error.pids.push_back(pid);
  } else {
    error.message.append("a process that was killed while it started");
  }
}

void describe_deaths(Error& error, std::span<const DeathWord> words) {
  const bool failed = std::ranges::any_of(words, [](DeathWord word) { return failure_of(word) != Failure::kNone; });
  error.message.append(failed ? " failed:" : " died without closing:");
  for (const DeathWord word : words) {
    if (word == kOthers) {
      error.message.append(" and others");
      continue;
    }
    append_killed(error, pid_of_death(word));
    const auto code = static_cast<int>(failure_of(word));
    const bool has_code = code > 0 && code < static_cast<int>(Failure::kNoExitCode);
    if (has_code) {
      error.message.append(" (exit code ").append(std::to_string(code)).append(")");
    } else if (code != 0) {
      error.message.append(" (closed its end after an exception)");
    } else if (failed && word >= 0) {
      error.message.append(" (killed)");
    }
    if (code != 0 && error.exit_code <= 0) error.exit_code = has_code ? code : -1;
  }
}

}  // namespace shmtree::memory
