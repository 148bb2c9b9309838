// Calls that would block forever, because the process with the other end blocks forever too. ThreadSanitizer has its
// own thread, which counts as one that could end the wait.
#include <signal.h>

#include <chrono>
#include <thread>

#include "support/catch2.h"
#include "support/channels.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// longer than it takes to prove a deadlock
constexpr std::chrono::milliseconds kLong{1500};
const WaitContext kForEver{};

std::shared_ptr<Channel> new_pipe(const std::shared_ptr<Arena>& arena) {
  ChannelOptions options = with_capacity(8);
  options.is_pipe = true;
  return new_channel(arena, options);
}

}  // namespace

#ifndef __SANITIZE_THREAD__
TEST_CASE("An untimed get on a pipe held by one process reports closed") {
  Child child([] {
    auto channel = new_pipe(new_arena());
    const bool may_come = code_of(get(*channel, patience(100))) == Code::kEmpty;
    return may_come && code_of(get(*channel, kForEver)) == Code::kClosed;
  });
  REQUIRE(child.succeeded());
}
#endif

TEST_CASE("The creator of a pipe is attached to both ends") {
  auto channel = new_pipe(new_arena());
  put(*channel, 1).value();
  REQUIRE(get(*channel).value() == 1);
  Child child([&] {
    const bool sent = put(*channel, 2).ok();
    channel->membership().leave(End::kSending);
    return sent;
  });
  REQUIRE(child.succeeded());
  REQUIRE(get(*channel).value() == 2);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  channel->membership().leave(End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("The death of a pipe creator is reported for its unused end") {
  auto arena = new_arena();
  Gate made, go;
  std::shared_ptr<Channel> channel;
  Child maker([&] {
    auto pipe = new_pipe(arena);
    static_cast<void>(get(*pipe, patience(1)));
    made.open(memory::pack(pipe->block()));
    go.wait();
    return true;
  });
  channel = Channel::open(arena, memory::unpack(made.wait()), patience()).value();
  channel->membership().join(End::kReceiving).value();
  maker.kill_and_wait();
  REQUIRE(code_of(get(*channel, kForEver)) == Code::kPeerDied);
}

#ifndef __SANITIZE_THREAD__
// guarantee: deadlock-ends
TEST_CASE("A deadlock ends one call and its exit ends the other") {
  Child all([] {
    auto arena = new_arena();
    auto first = new_channel(arena), second = new_channel(arena);
    Child other([&] { return code_of(get(*second, kForEver)) == Code::kPeerDied; });
    if (code_of(get(*first, kForEver)) != Code::kClosed) return false;
    // The other call still waits. It must end when this process is killed, or exits.
    for (const auto& channel : {first, second}) {
      for (const End end : channel::kEnds) channel->membership().leave(end);
    }
    other.succeeded();
    return true;
  });
  REQUIRE(all.succeeded());
}

TEST_CASE("A put without a timeout ends when all receivers are blocked") {
  Child all([] {
    auto arena = new_arena();
    auto full = new_channel(arena, with_capacity(1)), empty = new_channel(arena);
    put(*full, 1).value();
    Child other([&] { return !get(*empty, kForEver).ok(); });
    if (code_of(put(*full, 2, 1, kForEver)) != Code::kClosed) return false;
    other.kill_and_wait();
    return true;
  });
  REQUIRE(all.succeeded());
}
#endif

// guarantee: deadlock-ends
TEST_CASE("No deadlock is proved while some thread may still send") {
  auto waits_without_result = [](auto other_thread) {
    Child all([&] {
      auto arena = new_arena();
      auto first = new_channel(arena), second = new_channel(arena);
      Child other([&] { return other_thread(*first, *second); });
      if (get(*first, kForEver).value() != 7) return false;
      second->membership().leave(End::kSending);  // lets the other process continue
      return other.succeeded();
    });
    return all.succeeded();
  };
  SECTION("since it runs other code") {
    REQUIRE(waits_without_result([](Channel& first, Channel& second) {
      std::thread thread([&] {
        std::this_thread::sleep_for(kLong);
        static_cast<void>(put(first, 7));
      });
      const bool ended = !get(second, kForEver).ok();
      thread.join();
      return ended;
    }));
  }
  SECTION("since its call has a deadline") {
    REQUIRE(waits_without_result([](Channel& first, Channel& second) {
      static_cast<void>(get(second, patience(kLong.count())));
      return put(first, 7).ok();
    }));
  }
  SECTION("since it waits for something else") {
    REQUIRE(waits_without_result([](Channel& first, Channel&) {
      auto elsewhere = new_channel(new_arena());
      std::thread thread([&] {
        std::this_thread::sleep_for(kLong);
        static_cast<void>(put(*elsewhere, 1));
      });
      const bool got = get(*elsewhere, kForEver).ok();
      thread.join();
      return got && put(first, 7).ok();
    }));
  }
}

TEST_CASE("A named channel is not part of a deadlock") {
  Child all([] {
    auto arena = new_arena();
    Gate named_one;
    Child client([&] {
      const BlockRef block = memory::unpack(named_one.wait());
      std::this_thread::sleep_for(kLong);
      auto channel = Channel::open(arena, block, patience()).value();
      channel->membership().join(End::kSending).value();
      return put(*channel, 1).ok();
    });
    ChannelOptions named = with_capacity(8);
    named.is_named = true;
    auto first = new_channel(arena), second = new_channel(arena, named);
    named_one.open(memory::pack(second->block()));
    Child other([&] { return get(*second, kForEver).value() == 1 && put(*first, 7).ok(); });
    return get(*first, kForEver).value() == 7 && other.succeeded() && client.succeeded();
  });
  REQUIRE(all.succeeded());
}

// guarantee: deadlock-ends
TEST_CASE("A stopped process with a queued message proves no deadlock") {
  Child all([] {
    auto arena = new_arena();
    auto first = new_channel(arena), second = new_channel(arena);
    put(*second, 1).value();  // as if a process that exited had put it
    second->membership().leave(End::kSending);
    Gate waits;
    Child other([&] {
      waits.open();
      static_cast<void>(get(*second, kForEver));
      static_cast<void>(get(*second, kForEver));
      return put(*first, 7).ok();
    });
    waits.wait();
    other.signal(SIGSTOP);
    other.wait_until_stopped();
    std::thread later([&] {
      std::this_thread::sleep_for(kLong);
      other.signal(SIGCONT);
    });
    const bool got = get(*first, kForEver).value() == 7;
    later.join();
    return got && other.succeeded();
  });
  REQUIRE(all.succeeded());
}
