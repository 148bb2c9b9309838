// A server sends jobs to a pool of workers. One worker is killed in the middle of a job, and another one repeats it.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>

constexpr int kWorkers = 3, kJobs = 50;

struct Job {
  int number = 0;
  std::vector<double> data;
};
SHMTREE_FIELDS(Job, number, data)

struct Answer {
  int number = 0;
  double sum = 0;
};
SHMTREE_FIELDS(Answer, number, sum)

[[noreturn]] void work(const shmtree::Receiver& jobs, const shmtree::Sender& answers, bool dies) {
  for (;;) {
    auto taken = jobs.take();
    if (!taken) _exit(taken.code() == shmtree::Code::kClosed ? 0 : 1);
    if (dies) raise(SIGKILL);  // the channel redelivers the job
    const auto job = taken->item().as<Job>();
    double sum = 0;
    for (const double each : job.data) sum += each;
    answers.put(Answer{.number = job.number, .sum = sum}).value();
    taken->ack().value();  // the job is done now
  }
}

int main() {
  const shmtree::Arena arena = shmtree::Arena::create({.max_bytes = 64 << 20}).value();
  auto [jobs, jobs_of_workers] = shmtree::make_pair({.capacity = 4, .arena = arena, .max_attempts = 3});
  auto [answers_of_workers, answers] = shmtree::make_pair({.capacity = 0, .arena = arena});
  for (int i = 0; i < kWorkers; ++i) {
    if (fork() != 0) continue;
    jobs.close();
    answers.close();
    work(jobs_of_workers, answers_of_workers, i == 0);
  }
  jobs_of_workers.close();
  answers_of_workers.close();

  for (int number = 0; number < kJobs; ++number) {
    jobs.put(Job{.number = number, .data = std::vector<double>(1'000, number)}).value();
  }
  jobs.wait_for_all_ack().value();  // every job is done

  std::map<int, double> sums;
  while (sums.size() < kJobs) {
    const auto answer = answers.get().value().as<Answer>();
    sums[answer.number] = answer.sum;  // a repeated job gives the same result
  }
  jobs.close();
  while (wait(nullptr) > 0) {
  }
  std::printf("%zu answers, the last one is %g\n", sums.size(), sums.rbegin()->second);
  return sums.rbegin()->second == 1'000.0 * (kJobs - 1) ? 0 : 1;
}
