// Assertions of invariants, in the builds that tests use.
#include "platform/dcheck.h"

#include <fcntl.h>

#include <csignal>

#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;

TEST_CASE("An invariant that does not hold aborts the process") {
  const auto check = [](int number) {
    return [number] {
      signal(SIGABRT, SIG_DFL);                          // Catch2 has a handler
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);  // the error message is expected
      SHMTREE_DCHECK(number == 1);
      return true;
    };
  };
  test::Child holds(check(1));
  CHECK(holds.succeeded());
  test::Child fails(check(2));
#if defined(SHMTREE_DCHECKS)
  CHECK(fails.was_killed_by(SIGABRT));
#else
  CHECK(fails.succeeded());
#endif
}
