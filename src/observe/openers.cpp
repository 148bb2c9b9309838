#include "observe/openers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "platform/machine.h"
#include "platform/other_process.h"

namespace shmtree::observer {

namespace {

class Search {
 public:
  void visit(int pid, int fd) {
    if (is_mine(pid, fd)) return;
    auto opened = platform::open_from_process(pid, fd, platform::Access::kRead);
    if (!opened) {
      if (opened.code() != Code::kNotFound) refuse(pid, fd, opened.error().message);
      return;
    }
    const auto id = platform::file_id(opened->get());
    if (!id) return;
    auto known = std::find_if(found.begin(), found.end(), [&](const OpenArena& one) { return one.id == *id; });
    if (known == found.end()) {
      known = found.insert(found.end(), OpenArena{.id = *id});
      known->fd = std::move(*opened);
    }
    add(*known, pid, fd);
  }

  // Something of that process's cannot be opened, or not even be listed.
  void refuse(int pid, int fd, const std::string& why) {
    const auto same = [&](const OpenArena& one) { return !one.fd.valid() && one.openers[0].pid == pid; };
    if (std::any_of(found.begin(), found.end(), same)) return;
    OpenArena& one = found.emplace_back();
    one.refused = why;
    add(one, pid, fd);
  }

  std::vector<OpenArena> found{};

 private:
  // What this search has opened itself.
  bool is_mine(int pid, int fd) const {
    return pid == me_ &&
           std::any_of(found.begin(), found.end(), [fd](const OpenArena& one) { return one.fd.get() == fd; });
  }
  void add(OpenArena& to, int pid, int fd) {
    if (!to.openers.empty() && to.openers.back().pid == pid) return;  // it has several descriptors of it
    to.openers.push_back({pid, fd});
    const auto [known, is_new] = inside_.try_emplace(pid, 0);
    if (is_new) known->second = platform::pid_in_its_namespace(pid);
    to.processes.push_back({pid, known->second});
  }

  const int me_ = platform::process_id();
  std::map<int, int> inside_{};
};

}  // namespace

std::vector<OpenArena> find_open_arenas() {
  Search search;
  platform::find_memory_file(
      memory::kFileName,
      [&search](int pid, int fd) {
        search.visit(pid, fd);
        return false;
      },
      [&search](int pid, const Error& why) { search.refuse(pid, -1, why.message); });
  return std::move(search.found);
}

}  // namespace shmtree::observer
