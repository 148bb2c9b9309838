"""Coroutines and poll loops."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
import queue
import threading
import time
import weakref

import peers
import pytest

import shmtree
from shmtree._ipc import waiting as waiting_module
from shmtree._ipc import wake_hub


def test_get_async_returns_a_message_of_another_process(arena, start):
    sender, receiver = arena.create_pair()

    async def main() -> object:
        start(peers.put_all, sender, ["later"])
        return await receiver.get_async(timeout=60)

    assert asyncio.run(main()) == "later"


def test_waiting_coroutines_are_served_in_fifo_order(pair):
    sender, receiver = pair

    async def main() -> list[object]:
        getting = [asyncio.ensure_future(receiver.get_async(timeout=60)) for _ in range(5)]
        await asyncio.sleep(0)
        sender.put_many(range(6))
        getting.append(asyncio.ensure_future(receiver.get_async(timeout=60)))
        return await asyncio.gather(*getting)

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]
    assert not shmtree._ipc.waiting._lines


def test_cancelled_waiters_lose_no_message_and_block_no_other(pair):
    sender, receiver = pair

    async def main() -> None:
        getting = [asyncio.ensure_future(receiver.get_async()) for _ in range(5)]
        hasty = asyncio.ensure_future(receiver.get_async(timeout=0.05))
        with pytest.raises(queue.Empty):
            await hasty
        sender.put_many(["first", "second"])
        for given_up in (0, 2, 4):
            getting[given_up].cancel()
        results = await asyncio.gather(*getting, return_exceptions=True)
        assert [results[1], results[3]] == ["first", "second"]
        assert all(isinstance(results[i], asyncio.CancelledError) for i in (0, 2, 4))

    asyncio.run(main())
    assert not shmtree._ipc.waiting._lines


def test_get_async_raises_at_the_end_of_the_stream(pair):
    sender, receiver = pair

    async def main() -> None:
        getting = asyncio.ensure_future(receiver.get_async(timeout=60))
        await asyncio.sleep(0)
        sender.close()
        with pytest.raises(shmtree.ChannelClosed):
            await getting

    asyncio.run(main())


@pytest.mark.guarantee("closed-loop")
@pytest.mark.parametrize("end_closed", [False, True])
@pytest.mark.parametrize("call", ["get", "put"])
def test_closed_loop_leaves_no_reference_or_descriptor_behind(call, end_closed):
    def leave_waiting() -> list[weakref.ref[object]]:
        sender, receiver = shmtree.create_pair(1)
        end = receiver if call == "get" else sender
        if call == "put":
            sender.put("full")
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # the loop reports tasks that are still pending
        tasks = [loop.create_task(end.get_async() if call == "get" else end.put_async(1)) for _ in range(3)]
        loop.run_until_complete(asyncio.sleep(0))
        assert wake_hub._places
        loop.close()
        if end_closed:
            end.close()
        return [weakref.ref(each) for each in (sender, receiver, loop, *tasks)]

    leave_waiting()  # opens the descriptors that a process opens only once
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    left = leave_waiting()
    gc.collect()
    assert [each() for each in left] == [None] * len(left)
    assert not wake_hub._places
    assert not waiting_module._lines
    assert len(os.listdir("/proc/self/fd")) == before


def test_get_async_leaves_no_descriptor_open(pair):
    _, receiver = pair

    async def main() -> None:
        for _ in range(20):
            with pytest.raises(queue.Empty):
                await receiver.get_async(timeout=0.001)

    asyncio.run(main())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


def test_wait_returns_the_ready_receivers(arena):
    pairs = [arena.create_pair() for _ in range(3)]
    receivers = [receiver for _, receiver in pairs]
    assert shmtree.wait(receivers, timeout=0) == []
    pairs[2][0].put(1)
    pairs[0][0].put(1)
    assert shmtree.wait(receivers, timeout=60) == [receivers[0], receivers[2]]


def test_wait_returns_nothing_after_timeout(pair):
    began = time.monotonic()
    assert shmtree.wait([pair[1]], timeout=0.1) == []
    assert 0.1 <= time.monotonic() - began < 30
    assert shmtree.wait([], timeout=0.01) == []


def test_wait_is_woken_by_another_process(arena, start):
    sender, receiver = arena.create_pair()
    other = arena.create_pair()
    start(peers.put_all, sender, ["x"])
    assert shmtree.wait([other[1], receiver], timeout=60) == [receiver]
    assert receiver.get_nowait() == "x"


def test_wait_accepts_connections_too(pair):
    ours, theirs = mp.Pipe()
    assert shmtree.wait([pair[1], ours], timeout=0) == []
    theirs.send("x")
    assert shmtree.wait([pair[1], ours], timeout=60) == [ours]


def test_wait_in_one_thread_is_woken_by_a_put_in_another(pair):
    sender, receiver = pair
    thread = threading.Timer(0.05, sender.put, (1,))
    thread.start()
    assert shmtree.wait([receiver], timeout=30) == [receiver]
    thread.join()


def test_wait_rejects_a_bare_receiver_and_keeps_its_messages(pair):
    sender, receiver = pair
    sender.put(1)
    with pytest.raises(TypeError, match="receivers is a Receiver; it must be a list of receivers"):
        shmtree.wait(receiver, timeout=0)
    assert receiver.get_nowait() == 1


def test_wait_rejects_other_types_and_names_them(pair):
    sender, receiver = pair
    for wrong in (5, None, sender):
        with pytest.raises(TypeError, match=f"receivers is a {type(wrong).__name__}; it must be a list of receivers"):
            shmtree.wait(wrong, timeout=0)
        with pytest.raises(TypeError, match=f"contains a {type(wrong).__name__}"):
            shmtree.wait([receiver, wrong], timeout=0)
    with pytest.raises(TypeError, match="timeout is '1'; it must be a number of seconds"):
        shmtree.wait([receiver], timeout="1")
    assert shmtree.wait((each for each in [receiver]), timeout=0) == []


def test_put_async_of_a_sender_returns_the_ticket(pair):
    assert [asyncio.run(pair[0].put_async(each)) for each in "xy"] == [0, 1]
