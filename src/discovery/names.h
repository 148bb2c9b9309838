// Names for arenas and what is in them: a small file of the user's own that says which arena it is and which processes
// have it (name_file.h). The arena itself has no name anywhere, so a kill leaves only that file. Each folder also keeps
// one empty file, `.lock`, for MakersLock.
//
// Whoever takes part keeps a part in the file (LockedFile::take_part) besides its entry: entries tell where the arena
// is, parts whether anybody lives, also in another PID namespace. So does who gives what is known by the name to
// another process, until it arrives there (name_in_transit.h). It is taken over, or swept, only when there are neither:
// when that name is made anew, when any name is made or opened (a few files each time), and when the names are listed.
//
// What holds around a fork: the child has a part before it exists, which its parent took for it and both have the
// descriptor of until fork() returns. So there is no moment in which the name could be taken from the child. A fork
// that fails, a child that is killed and one that runs another program close it. The child enters itself later, when it
// may wait for the file's lock; whoever finds a part and no entry that leads anywhere looks for the arena in all
// processes of this user.
//
// A process that is being started has such a part as well, from the moment its arguments are pickled: its parent takes
// it, and it inherits the descriptor; when it joins it takes one of its own and ends that one, in its parent too. If it
// is killed before, its parent's copy of the descriptor goes when the parent next makes, opens or gives something.
//
// Thread safety: every function may be called from any thread; a Name is used by one thread at a time, but for the fork
// handlers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "platform/fork.h"
#include "platform/waiting.h"

namespace shmtree::discovery {

enum class NamedKind : std::uint32_t {
  kArena = 1,
  kChannel = 2,
  kArray = 3,
  kQueue = 4,
  kReplay = 5,
  kLatest = 6,
  kBroadcast = 7
};

struct NamedThing {
  NamedKind kind = NamedKind::kArena;
  std::shared_ptr<memory::Arena> arena{};
  std::uint64_t block = 0;  // packed
  std::string note{};       // at most 472 bytes, for whoever made it
};

// This process's part in a name. When the last process's part is gone, so is the name.
class Name {
 public:
  // Code::kExists when a living process has a thing of that name, Code::kInvalid for a text that cannot be a name. So
  // has a process whose file of it was removed, if this process can see it in /proc; the file is put back then.
  static Result<std::unique_ptr<Name>> create(const std::string& name, const NamedThing& thing);
  // Waits for a process to make it, for `timeout` at most (none: forever). Code::kNotFound, or kTimeout after a wait,
  // when there is none, or every process that had it has ended; the text names the folders searched. Code::kUnavailable
  // when the system keeps us from it. Code::kInterrupted by `hooks`.
  static Result<std::unique_ptr<Name>> open(
      const std::string& name, std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
      platform::WaitHooks* hooks = nullptr);
  // Takes part in a name by way of an arena that came with a handle; `path` as path() gave it. An error when the name
  // means something else by now. `part`: what the parent of this process took for it, or none.
  static Result<std::unique_ptr<Name>> join(const std::string& path, std::shared_ptr<memory::Arena> arena,
                                            platform::UniqueFd part = {});
  ~Name();
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;

  const NamedThing& thing() const noexcept { return thing_; }
  const std::string& path() const noexcept { return path_; }
  // Ends this process's part early, as before an exit that runs no destructors.
  void leave() noexcept;
  // The fork handlers, run while every ForkSafeMutex is held.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;
  // Later, in the child: enters it in the file.
  Status join_again() { return add_entry(); }

  // The part of a process that is being started and will join with it; kept open here until it has it as well.
  Result<platform::UniqueFd> part_for_child() const;
  // Of one that was not started after all.
  static void give_up_part(const std::string& path, platform::UniqueFd part) noexcept;
  // Clears the entry of the giver: this process has loaded what was in transit.
  Status note_arrival(std::uint64_t transfer);

 private:
  Name(std::string path, NamedThing thing) : path_(std::move(path)), thing_(std::move(thing)) {}
  static Result<std::unique_ptr<Name>> open_now(const std::vector<std::string>& paths, const std::string& name);
  Status add_entry();
  Status remove_entry();
  void end_part() noexcept;

  std::string path_;
  NamedThing thing_;
  platform::ForkSafeMutex mutex_{};  // who ends the part; others set it while nobody else knows of the object
  int pid_ = 0;                      // of the process that has the part
  platform::CheckedFd part_{};       // in the file
  platform::CheckedFd childs_{};     // between the fork handlers: the part of the child
};

struct NameInfo {
  std::string name{};
  std::string path{};
  NamedKind kind = NamedKind::kArena;
  std::vector<int> pids{};  // of the living, 0 for those out of sight; empty for what a kill left over
};

// What follows is an error when this process has no descriptors left: it would show less than there is.

// Removes what nobody alive has, after it was listed.
Result<std::vector<NameInfo>> list_names();
// The same for who only looks: takes no lock, and removes nothing. May have names that are made or removed meanwhile.
struct SeenName {
  std::string name{};
  NamedKind kind = NamedKind::kArena;
  unsigned char uuid[16]{};
  std::uint64_t block = 0;  // packed; 0 for an arena
  bool has_parts = false;   // somebody lives who has it
};
Result<std::vector<SeenName>> look_at_names();
// Removes what nobody alive has; returns the names.
Result<std::vector<std::string>> clean_names();

}  // namespace shmtree::discovery
