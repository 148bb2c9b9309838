/* What glibc 2.28 has not and what is compiled against a newer one may call: goes into what is linked, where it is
   called. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

char __libc_single_threaded = 0; /* never known: what asks takes the way that is right with any number of threads */

unsigned int arc4random(void) { /* the C++ library's random_device */
  unsigned int word;
  while (getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* That release waits by the wall clock alone. A clock that is set meanwhile moves the end of the wait. */
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
