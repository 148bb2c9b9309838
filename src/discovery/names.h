// Names for arenas and for objects in them. A name is a small private file of the user that says which arena it is and
// which processes hold the name (name_file.h). The arena itself has no name in any file system, so a crash leaves only
// that file. Each folder also contains one empty file, `.lock`, for MakersLock.
//
// A process that holds a name has an entry in the file and a part (LockedFile::take_part). Entries tell where the arena
// is. Parts tell if a process is alive, even in another PID namespace. A process that pickles a named object holds the
// name in the same way until the object arrives (name_in_transit.h). A name is replaced or removed only if it has no
// parts and no entries of living processes. That is checked when the same name is created, for a few other files
// whenever a name is created or opened, and for all when names are listed.
//
// Around a fork: the child has a part before it exists. Its parent takes the part, and both have the descriptor until
// fork() returns. So there is no moment in which another process could take the name from the child. If the fork fails,
// or the child dies or runs another program, the part ends. The child adds its entry later, when it may wait for the
// file's lock. A process that finds a part and no usable entry searches all processes of this user for the arena.
//
// A process that is being started has such a part as well, from the moment its arguments are pickled. Its parent takes
// the part, and the process inherits the descriptor. When the process joins, it takes a part of its own and ends the
// inherited part, also for its parent. If it dies before that, the parent's copy is closed when the parent next
// creates, opens or pickles something.
//
// Thread safety: any thread may call every function. One thread at a time may use a Name, except for the fork handlers.
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

// A name has parts, which '/' separates: "robot/lidar". It has 1 to 200 bytes, of which '/' and '%' count three each
// because its file name has "%2F" and "%25" for them. No part is empty or begins with '.'.
struct NamedObject {
  NamedKind kind = NamedKind::kArena;
  std::shared_ptr<memory::Arena> arena{};
  std::uint64_t block = 0;  // packed
  std::string note{};       // at most 472 bytes, for the creator's use
};

// Holds a name for this process. When the last process releases a name, the name ends.
class Name {
 public:
  // Creates a name. Code::kExists if a living process holds that name, Code::kInvalid for a text that cannot be a name.
  // A process also holds the name if its file was removed, as long as this process can see it in /proc; the file is
  // then restored.
  static Result<std::unique_ptr<Name>> create(const std::string& name, const NamedObject& object);
  // Opens a name. Waits at most `timeout` for a process to create it (none: forever). Code::kNotFound, or kTimeout
  // after a wait, if there is none, or if every process that held it has exited; the text lists the searched folders.
  // Code::kUnavailable if the system refuses access to it. Code::kInterrupted by `hooks`.
  static Result<std::unique_ptr<Name>> open(
      const std::string& name, std::optional<std::chrono::nanoseconds> timeout = std::chrono::nanoseconds(0),
      platform::WaitHooks* hooks = nullptr);
  // Holds a name with the arena of a handle; `path` is the value of path() in the process that made the handle. Fails
  // if the name stands for another object by now. `part`: the part that the parent of this process took for it, or
  // none.
  static Result<std::unique_ptr<Name>> join(const std::string& path, std::shared_ptr<memory::Arena> arena,
                                            platform::UniqueFd part = {});
  ~Name();
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;

  const NamedObject& object() const noexcept { return object_; }
  const std::string& path() const noexcept { return path_; }
  // Releases the name early, for example before an exit that runs no destructors.
  void leave() noexcept;
  // The fork handlers, which run while every ForkSafeMutex is held.
  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;
  // Adds the child's entry to the file. Called later, in the child.
  Status join_again() { return add_entry(); }

  // Returns a part for a process that is being started and will pass it to join(). The caller keeps the part open until
  // that process has inherited it.
  Result<platform::UniqueFd> part_for_child() const;
  // Ends the part of a process that failed to start.
  static void give_up_part(const std::string& path, platform::UniqueFd part) noexcept;
  // Clears the giver's entry, since this process has loaded the object in transit.
  Status note_arrival(std::uint64_t transfer);

 private:
  Name(std::string path, NamedObject object) : path_(std::move(path)), object_(std::move(object)) {}
  static Result<std::unique_ptr<Name>> open_now(const std::vector<std::string>& paths, const std::string& file_name);
  Status add_entry();
  Status remove_entry();
  void end_part() noexcept;

  std::string path_;
  NamedObject object_;
  platform::ForkSafeMutex mutex_{};  // Guards the end of the part. The part is set before the object is shared, so
                                     // setting it needs no lock.
  int pid_ = 0;                      // Process that has the part.
  platform::CheckedFd part_{};       // This process's part in the file.
  platform::CheckedFd childs_{};     // Part of the child, while a fork is in progress.
};

struct NameInfo {
  std::string name{};
  std::string path{};
  NamedKind kind = NamedKind::kArena;
  std::vector<int> pids{};  // living holders; 0 for invisible ones; empty after a crash
};

// The functions below fail if this process has no free descriptor, since they would miss names.

// Lists all names. Removes those that no living process holds, after they were listed.
Result<std::vector<NameInfo>> list_names();
// A name that list_records() has found. That call takes no locks and removes nothing. It may include names that are
// created or removed meanwhile.
struct SeenName {
  std::string name{};
  NamedKind kind = NamedKind::kArena;
  unsigned char uuid[16]{};
  std::uint64_t block = 0;  // packed; 0 for an arena
  bool has_parts = false;   // a living process holds it
};
Result<std::vector<SeenName>> list_records();
// Removes the names that no living process holds, and returns them.
Result<std::vector<std::string>> clean_names();

}  // namespace shmtree::discovery
