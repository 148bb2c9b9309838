// Workers share a queue of jobs and a queue of answers. The main process waits until all jobs are done.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

constexpr int kWorkers = 3, kJobs = 30;

struct Job {
  int number = 0;
  std::vector<double> data;
};
SHMTREE_FIELDS(Job, number, data)

[[noreturn]] void work(const shmtree::Queue& jobs, const shmtree::Queue& answers) {
  for (const shmtree::Item& item : jobs) {  // ends when the queue is shut down
    const auto job = item.as<Job>();
    double sum = 0;
    for (const double each : job.data) sum += each;
    answers.put(shmtree::Dict{{"number", job.number}, {"sum", sum}}).value();
    jobs.task_done().value();
  }
  _exit(0);
}

int main() {
  const shmtree::Arena arena = shmtree::Arena::create({.max_bytes = 64 << 20}).value();
  const shmtree::Queue jobs = shmtree::make_queue({.capacity = 4, .arena = arena});
  const shmtree::Queue answers = shmtree::make_queue({.arena = arena});
  for (int i = 0; i < kWorkers; ++i) {
    if (fork() == 0) work(jobs, answers);
  }
  for (int number = 0; number < kJobs; ++number) {
    jobs.put(Job{.number = number, .data = std::vector<double>(1'000, number)}).value();
  }
  jobs.join().value();
  jobs.shutdown().value();
  while (wait(nullptr) > 0) {
  }
  double sum = 0;
  while (!answers.empty()) sum += answers.get().value()["sum"].as<double>();
  std::printf("%llu answers, %g in all\n", static_cast<unsigned long long>(answers.stats().value().put), sum);
  return sum == 1'000.0 * kJobs * (kJobs - 1) / 2 ? 0 : 1;
}
