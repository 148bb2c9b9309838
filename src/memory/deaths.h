// Deaths and failures of processes, as their peers report them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shmtree/base/result.h"

namespace shmtree::memory {

// 1 to 255: the process exits with that code, because it failed.
enum class Failure : std::uint32_t {
  kNone = 0,          // It left normally; or, in the word of a death, it was killed.
  kNoExitCode = 256,  // It closed its end after an exception, and may go on.
};

// The failure of a process with that exit code; 0: none yet.
constexpr Failure failure_with(std::uint32_t exit_code) noexcept {
  return exit_code == 0 ? Failure::kNoExitCode : static_cast<Failure>(exit_code);
}

// A death or failure in one word: the pid, which Linux limits to 22 bits, and the Failure. 0: none. Negative: a process
// that was killed before it stored its pid, or kOthers.
using DeathWord = std::int32_t;
constexpr DeathWord kOthers = -2;  // stands for one or more processes for which a list had no space
constexpr unsigned kPidBits = 22;
constexpr DeathWord death_word(std::int32_t pid, Failure failure) noexcept {
  return static_cast<DeathWord>(static_cast<std::uint32_t>(pid) | static_cast<std::uint32_t>(failure) << kPidBits);
}
constexpr std::int32_t pid_of_death(DeathWord word) noexcept {
  return word < 0 ? 0 : word & ((1 << kPidBits) - 1);
}
constexpr Failure failure_of(DeathWord word) noexcept {
  return word < 0 ? Failure::kNone : static_cast<Failure>(static_cast<std::uint32_t>(word) >> kPidBits);
}

// Records that this process is about to exit with that code, so that it leaves every object as failed from then on.
// kNone undoes this. A forked child inherits the record.
void note_exit(Failure failure) noexcept;
Failure exit_failure() noexcept;

// Appends a killed process to the list that ends the error's message. `pids` gets only pids above 0, since kill()
// signals a whole group for the others. They stand for a forked process that was killed before it stored its pid.
void append_killed(Error& error, std::int32_t pid);
// Characters that describe_deaths() adds for each word, and once, at most.
constexpr std::size_t kMaxDeathText = 48, kMaxDeathVerb = 24;
// Completes an error of kPeerDied about these processes: its text, `pids` and `exit_code`. Allocates nothing if `error`
// has room for the pids and for the text.
void describe_deaths(Error& error, std::span<const DeathWord> words);

}  // namespace shmtree::memory
