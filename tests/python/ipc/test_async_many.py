"""Many waiting coroutines: they share one descriptor, run in any loops, and are woken without polling."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
import resource
import selectors
import threading
import time

import pytest

import shmtree
from shmtree._ipc import wake_hub


@pytest.fixture
def no_looks(monkeypatch):
    """Disables the periodic checks, so that only a wake-up ends a wait."""
    monkeypatch.setattr(wake_hub, "SLICE_S", 3600.0)


@pytest.fixture
def few_descriptors():
    """Limits the process to 20 more descriptors than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def make_pairs(count):
    arena = shmtree.Arena(256 << 20)
    return [arena.create_pair(1) for _ in range(count)]


async def until_all_wait(count):
    while sum(len(waits._awaited_ends) for waits in wake_hub._all_hubs()) < count:
        await asyncio.sleep(0)


def put_each(senders, messages):
    for sender, message in zip(senders, messages, strict=True):
        sender.put(message)


@pytest.mark.guarantee("coroutine-descriptor")
@pytest.mark.parametrize("count", [600, 5000])
def test_thousands_of_waiting_gets_use_one_descriptor(no_looks, few_descriptors, start, count):
    pairs = make_pairs(count)

    async def main():
        before = len(os.listdir("/proc/self/fd"))
        getting = [asyncio.ensure_future(receiver.get_async()) for _, receiver in pairs]
        await until_all_wait(count)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        child = start(put_each, [sender for sender, _ in pairs], range(count))
        got = await asyncio.wait_for(asyncio.gather(*getting), 250)
        await asyncio.get_running_loop().run_in_executor(None, child.join)
        return got

    assert asyncio.run(main()) == list(range(count))


def test_hundreds_of_waiting_puts_all_finish_when_space_frees(no_looks, few_descriptors):
    pairs = make_pairs(600)
    for sender, _ in pairs:
        sender.put("full")

    async def main():
        putting = [asyncio.ensure_future(sender.put_async(i)) for i, (sender, _) in enumerate(pairs)]
        await until_all_wait(600)
        assert {receiver.get() for _, receiver in pairs} == {"full"}
        await asyncio.wait_for(asyncio.gather(*putting), 250)

    asyncio.run(main())
    assert [receiver.get_nowait() for _, receiver in pairs] == list(range(600))


@pytest.mark.guarantee("coroutine-descriptor")
def test_all_1000_waiters_wake_after_their_loop_was_busy(no_looks, start):
    pairs = make_pairs(1000)

    async def main():
        getting = [asyncio.ensure_future(receiver.get_async()) for _, receiver in pairs]
        await until_all_wait(1000)
        start(put_each, [sender for sender, _ in pairs], range(1000)).join()
        return await asyncio.wait_for(asyncio.gather(*getting), 250)

    assert asyncio.run(main()) == list(range(1000))


@pytest.mark.guarantee("coroutine-descriptor")
def test_loops_of_other_threads_wake_while_one_is_busy(no_looks, start):
    pairs = make_pairs(40)
    busy, free = threading.Event(), threading.Event()
    got = {}

    async def wait_for(mine):
        getting = [asyncio.ensure_future(pairs[i][1].get_async()) for i in mine]
        if 0 in mine:  # counts only this loop's calls: the other loops may start after the first put
            await until_all_wait(40)
            busy.set()
            assert free.wait(100)
        got.update(zip(mine, await asyncio.wait_for(asyncio.gather(*getting), 250), strict=True))

    threads = [threading.Thread(target=lambda k=k: asyncio.run(wait_for(range(k, 40, 4)))) for k in range(4)]
    for thread in threads:
        thread.start()
    assert busy.wait(100)
    start(put_each, [sender for sender, _ in pairs], range(40)).join()
    for thread in threads[1:]:
        thread.join(100)
    assert sorted(got) == [i for i in range(40) if i % 4]
    free.set()
    threads[0].join(100)
    assert got == {i: i for i in range(40)}
    assert not wake_hub._places


def test_restarted_loop_finds_messages_put_meanwhile(no_looks):
    pairs = make_pairs(100)
    loop = asyncio.new_event_loop()
    getting = [loop.create_task(receiver.get_async()) for _, receiver in pairs]
    loop.run_until_complete(until_all_wait(100))
    put_each([sender for sender, _ in pairs], range(100))
    assert loop.run_until_complete(asyncio.wait_for(asyncio.gather(*getting), 250)) == list(range(100))
    loop.close()


def echo_async(receiver, sender, told):
    async def main():
        told.send("ready")
        sender.put(await asyncio.wait_for(receiver.get_async(), 100))

    asyncio.run(main())


def test_forked_child_and_parent_loop_wake_independently(no_looks, start):
    (to_child, for_child), (to_parent, for_parent) = make_pairs(2)
    ours, theirs = mp.Pipe()

    async def main():
        getting = asyncio.ensure_future(for_parent.get_async())
        await until_all_wait(1)
        start(echo_async, for_child, to_parent, theirs)
        await asyncio.get_running_loop().run_in_executor(None, ours.recv)
        to_child.put("there and back")
        return await asyncio.wait_for(getting, 100)

    assert asyncio.run(main()) == "there and back"


def test_cancelled_waiter_does_not_consume_a_wake_up(no_looks):
    ((sender, receiver),) = make_pairs(1)

    async def main():
        for i in range(20):
            given_up = [asyncio.ensure_future(receiver.get_async()) for _ in range(2)]
            await until_all_wait(1)
            given_up[0].cancel()
            if i % 2:
                sender.put(i)
                assert await asyncio.wait_for(given_up[1], 100) == i
            else:
                given_up[1].cancel()
            await asyncio.gather(*given_up, return_exceptions=True)

    asyncio.run(main())


def get_share(receiver, results):
    async def main():
        async for item in receiver:
            results.put(item)

    asyncio.run(main())


def test_await_in_three_processes_gets_each_message_once(no_looks, arena, start):
    sender, receiver = arena.create_pair(4)
    results = arena.Queue()
    children = [start(get_share, receiver, results) for _ in range(3)]
    receiver.close()

    async def main():
        for i in range(2000):
            await sender.put_async(i)

    asyncio.run(asyncio.wait_for(main(), 250))
    sender.close()
    assert sorted(results.get(timeout=100) for _ in range(2000)) == list(range(2000))
    for child in children:
        child.join(100)
        assert child.exitcode == 0


def test_loop_that_refuses_add_reader_leaves_no_descriptor():
    ((sender, receiver),) = make_pairs(1)

    class Refusing(asyncio.SelectorEventLoop):
        def add_reader(self, fd, callback, *args):
            if self.is_running():
                raise OSError("no more")
            super().add_reader(fd, callback, *args)

    loop = Refusing()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="no more"):
            loop.run_until_complete(receiver.get_async())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not wake_hub._places
    loop.close()
    sender.close()


@pytest.mark.filterwarnings("error")
def test_warning_as_error_ends_a_coroutines_wait(soon, monkeypatch, launcher):
    monkeypatch.setattr(wake_hub, "SLICE_S", 0.05)
    ((_sender, receiver),) = make_pairs(1)
    launcher()
    with pytest.raises(shmtree.UnusedEndWarning):
        asyncio.run(asyncio.wait_for(receiver.get_async(), 100))


def publish_each(latests, values):
    for latest, value in zip(latests, values, strict=True):
        latest.publish(value)


class CountedSelector(selectors.DefaultSelector):
    """Counts the waits of its loop."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    def select(self, timeout=None):
        self.waits += 1
        return super().select(timeout)


@pytest.mark.guarantee("coroutines-sleep")
def test_coroutines_of_many_latests_wake_without_polling(no_looks, few_descriptors, start):
    latests = [shmtree.Latest() for _ in range(300)]
    selector = CountedSelector()

    async def main():
        loop = asyncio.get_running_loop()
        getting = [asyncio.ensure_future(latest.get_async()) for latest in latests for _ in range(3)]
        await until_all_wait(len(getting))
        before = selector.waits
        await loop.run_in_executor(None, time.sleep, 1)
        assert selector.waits - before < 10  # a polling loop waits 40 times or more
        child = start(publish_each, latests, range(300))
        got = await asyncio.wait_for(asyncio.gather(*getting), 250)
        await loop.run_in_executor(None, child.join)
        assert got == [(1, number) for number in range(300) for _ in range(3)]

    run_with(selector, main())


@pytest.mark.guarantee("coroutines-sleep")
def test_coroutines_of_subscribers_wake_for_each_message(no_looks, start):
    broadcast = shmtree.Broadcast(4)
    subscribers = [broadcast.subscribe() for _ in range(5)]

    async def read(subscriber):
        return [await subscriber.get_async(timeout=250) for _ in range(20)]

    async def main():
        reading = [asyncio.ensure_future(read(subscriber)) for subscriber in subscribers]
        await until_all_wait(len(reading))
        child = start(put_all, broadcast, 20)
        assert await asyncio.gather(*reading) == 5 * [list(range(20))]
        await asyncio.get_running_loop().run_in_executor(None, child.join)

    asyncio.run(main())


def put_all(broadcast, count):
    for number in range(count):
        broadcast.put(number, timeout=250)


def read_each(subscriber, count):
    for number in range(count):
        assert subscriber.get(timeout=250) == number


@pytest.mark.guarantee("coroutines-space")
def test_thousand_coroutines_that_wait_for_space_wake_rarely(no_looks, start):
    broadcast = shmtree.Broadcast(capacity=1)
    subscriber = broadcast.subscribe()
    broadcast.put(0)
    selector = CountedSelector()

    async def main():
        loop = asyncio.get_running_loop()
        putting = [asyncio.ensure_future(broadcast.put_async(number)) for number in range(1, 1001)]
        await until_all_wait(1)
        before = selector.waits
        await loop.run_in_executor(None, time.sleep, 1)
        assert selector.waits - before < 10  # a polling loop waits 40 times or more
        child = start(read_each, subscriber, 1001)
        subscriber.close()
        assert await asyncio.wait_for(asyncio.gather(*putting), 250) == list(range(1, 1001))
        assert selector.waits - before < 10_000  # each message wakes few coroutines
        await loop.run_in_executor(None, child.join)
        assert child.exitcode == 0

    run_with(selector, main())


def run_with(selector, main):
    loop = asyncio.SelectorEventLoop(selector)
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def get_large(subscriber, told):
    assert subscriber.get(timeout=250) == bytes(600)
    told.recv()
    assert subscriber.get(timeout=250) == bytes(600)
    assert subscriber.get(timeout=250) == bytes(1000)


@pytest.mark.guarantee("coroutines-space")
def test_put_async_of_a_large_message_waits_for_bytes(no_looks, start):
    broadcast = shmtree.Broadcast(max_bytes=2000)
    subscriber = broadcast.subscribe()
    broadcast.put(bytes(600))
    broadcast.put(bytes(600))
    ours, theirs = mp.Pipe()

    async def main():
        loop = asyncio.get_running_loop()
        putting = asyncio.ensure_future(broadcast.put_async(bytes(1000)))
        await until_all_wait(1)
        child = start(get_large, subscriber, theirs)
        subscriber.close()
        assert await asyncio.wait_for(putting, 250) == 2
        ours.send("go on")
        await loop.run_in_executor(None, child.join)
        assert child.exitcode == 0

    asyncio.run(main())


@pytest.mark.guarantee("coroutines-space")
@pytest.mark.parametrize("leave", [shmtree.Subscriber.close, lambda subscriber: None])
def test_put_async_continues_when_its_slow_subscriber_leaves(no_looks, leave):
    broadcast = shmtree.Broadcast(capacity=1)
    subscribers = [broadcast.subscribe()]
    broadcast.put(0)

    async def main():
        putting = asyncio.ensure_future(broadcast.put_async(1))
        await until_all_wait(1)
        leave(subscribers.pop())
        assert await asyncio.wait_for(putting, 250) == 1

    asyncio.run(main())


def read_then_hang(subscriber, told):
    subscriber.get()
    told.send("read")
    time.sleep(1000)


@pytest.mark.guarantee("coroutines-space")
def test_put_async_continues_when_a_subscriber_is_killed(start):
    broadcast = shmtree.Broadcast(capacity=1)
    subscriber = broadcast.subscribe()
    broadcast.put(0)
    ours, theirs = mp.Pipe()
    child = start(read_then_hang, subscriber, theirs)
    ours.recv()
    broadcast.put(1)

    async def main():
        putting = asyncio.ensure_future(broadcast.put_async(2))
        await until_all_wait(1)
        child.kill()
        assert await asyncio.wait_for(putting, 250) == 2

    asyncio.run(main())
