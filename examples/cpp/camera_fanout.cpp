// A camera writes each frame once, in place, for a recorder that misses none and a display that reads only the newest.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

struct Frame {
  int number = 0;
  unsigned char pixels[480][640] = {};
};
constexpr int kFrames = 200;

int record(const shmtree::Subscriber& frames) {
  for (int i = 0; i < kFrames; ++i) {
    const auto item = frames.get_bytes().value();
    if (item.as<Frame>().number != i || item.as<Frame>().pixels[479][639] != i % 256) return 1;
  }
  return 0;
}

int display(const shmtree::Subscriber& frames) {
  int last = -1;
  while (last < kFrames - 1) {
    const auto item = frames.get_bytes().value();
    if (item.as<Frame>().number <= last) return 1;
    last = item.as<Frame>().number;
  }
  return 0;
}

int main() {
  const shmtree::Broadcast camera = shmtree::make_broadcast({.capacity = 4});
  shmtree::Subscriber all = camera.subscribe().value();
  shmtree::Subscriber newest = camera.subscribe({.on_lag = shmtree::OnLag::kLatest}).value();
  if (fork() == 0) _exit(record(all));
  if (fork() == 0) _exit(display(newest));
  all.close(), newest.close();  // now only the children use them
  for (int i = 0; i < kFrames; ++i) {
    auto frame = camera.loan<Frame>().value();  // written in place
    frame->number = i;
    frame->pixels[479][639] = static_cast<unsigned char>(i % 256);
    camera.put(std::move(frame)).value();
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0 ? 1 : 0;
  std::printf("%d frames, %d readers failed\n", kFrames, failed);
  return failed;
}
