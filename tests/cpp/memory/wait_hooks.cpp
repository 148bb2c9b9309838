// Callbacks of the embedding program during a wait for a lock. The Python bindings release the GIL in before_block(),
// and need it again in interrupted().
#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Lets the owner of the lock continue once the wait for it has begun.
class RecordingHooks : public WaitHooks {
 public:
  RecordingHooks(const std::atomic<std::uint32_t>& lock, memory::Identity me, const Gate& waiting)
      : lock_(lock), me_(me), waiting_(waiting) {}

  void before_block() noexcept override {
    note_lock();
    blocking_ = true;
    if (blocks++ == 0) waiting_.open();
  }
  void after_block() noexcept override {
    blocking_ = false;
    note_lock();
  }
  bool interrupted() noexcept override {
    note_lock();
    asked += 1;
    asked_while_blocking = asked_while_blocking || blocking_;
    return false;
  }

  int blocks = 0;
  int asked = 0;
  bool asked_while_blocking = false;
  bool lock_was_ours = false;

 private:
  void note_lock() noexcept {
    const std::uint32_t owner = lock_.load() & ~(memory::kHeld | memory::kContended);
    lock_was_ours = lock_was_ours || owner == me_;
  }

  const std::atomic<std::uint32_t>& lock_;
  const memory::Identity me_;
  const Gate& waiting_;
  bool blocking_ = false;
};

}  // namespace

TEST_CASE("Hooks are not asked while blocking nor called under the lock") {
  auto arena = new_arena();
  Gate taken, waiting;
  Child owner([&] {
    const bool ok = arena->reconciler().lock_arena(patience()).ok();
    taken.open();
    waiting.wait();
    arena->reclaimer().unlock();
    return ok;
  });
  RecordingHooks hooks(arena->header().arena_lock, arena->identity().value(), waiting);
  taken.wait();

  REQUIRE(arena->reconciler().lock_arena({Deadline::never(), &hooks}).ok());
  arena->reclaimer().unlock();

  CHECK(owner.succeeded());
  CHECK(hooks.blocks > 0);
  CHECK(hooks.asked == hooks.blocks);
  CHECK_FALSE(hooks.asked_while_blocking);
  CHECK_FALSE(hooks.lock_was_ours);
}
