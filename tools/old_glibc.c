/* Functions that glibc 2.28 lacks, and that code compiled against a newer glibc may call. Linked into each library that
   calls them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

char __libc_single_threaded = 0; /* unknown: callers take the path that is correct for any number of threads */

unsigned int arc4random(void) { /* for the C++ library's random_device */
  unsigned int word;
  while (getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* glibc 2.28 waits by the wall clock only. If that clock is set meanwhile, the end of the wait moves. */
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= 1000000000) {
    wall.tv_nsec -= 1000000000;
    ++wall.tv_sec;
  }
  return pthread_mutex_timedlock(mutex, &wall);
}
