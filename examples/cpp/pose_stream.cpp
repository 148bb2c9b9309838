// Receives plain structs, without a tree, from whichever of two sensors has one.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

struct Pose {
  std::int64_t time_ns = 0;
  double x = 0, y = 0, z = 0;
};
struct Scan {
  std::int64_t time_ns = 0;
  float ranges[16'384] = {};
};
constexpr int kPoses = 1'000, kScans = 20;

int main() {
  auto [poses, poses_here] = shmtree::make_pair({.capacity = 64});
  auto [scans, scans_here] = shmtree::make_pair({.capacity = 4});
  if (fork() == 0) {
    poses_here.close(), scans_here.close(), scans.close();
    for (int i = 0; i < kPoses; ++i) poses.put_struct(Pose{.time_ns = i, .x = 0.5 * i}).value();
    poses.close();
    _exit(0);
  }
  if (fork() == 0) {
    poses_here.close(), scans_here.close(), poses.close();
    for (int i = 0; i < kScans; ++i) {
      auto scan = scans.loan<Scan>().value();  // written in place
      scan->time_ns = i;
      scan->ranges[16'383] = static_cast<float>(i);
      scans.put(std::move(scan)).value();
    }
    scans.close();
    _exit(0);
  }
  poses.close(), scans.close();

  using namespace std::chrono_literals;
  std::vector<shmtree::Receiver> open{poses_here, scans_here};
  int got_poses = 0, got_scans = 0;
  while (!open.empty()) {
    const std::vector<std::size_t> ready = shmtree::wait(open).value();
    const shmtree::Receiver from = open[ready.front()];
    const auto message = from.get_bytes(0s);
    if (!message) {
      if (message.code() != shmtree::Code::kClosed) return 1;
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(ready.front()));
    } else if (message->size() == sizeof(Pose)) {
      got_poses += message->as<Pose>().x == 0.5 * static_cast<double>(message->as<Pose>().time_ns) ? 1 : 0;
    } else {
      const Scan& scan = message->as<Scan>();  // in shared memory
      got_scans += scan.ranges[16'383] == static_cast<float>(scan.time_ns) ? 1 : 0;
    }
  }
  while (wait(nullptr) > 0) {
  }
  std::printf("%d poses, %d scans\n", got_poses, got_scans);
  return got_poses == kPoses && got_scans == kScans ? 0 : 1;
}
