"""Parts of a queue that other code accesses: its two ends, its locks, descriptors for poll loops, and coroutines."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import queue
import selectors
import signal
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from starts import START_METHODS

import shmtree


def test_reader_and_writer_send_and_receive():
    q = shmtree.SimpleQueue()
    assert not q._reader.poll()
    assert not q._poll()
    q._writer.send({"a": 1})
    assert q._reader.poll() and q._reader.poll(None) and q._poll(1)
    assert q._reader.recv() == {"a": 1}
    assert not q._reader.poll(0.01)


def test_reader_and_writer_transfer_pickled_bytes():
    q = shmtree.SimpleQueue()
    pickled = bytes(ForkingPickler.dumps([1, "x"]))
    q._writer.send_bytes(b"##" + pickled + b"##", 2, len(pickled))
    assert q.get() == [1, "x"]
    q.put((2, "y"))
    assert ForkingPickler.loads(q._reader.recv_bytes()) == (2, "y")
    q.put("longer than that")
    with pytest.raises(OSError, match="maxlength is 4"):
        q._reader.recv_bytes(4)


def test_closing_one_half_leaves_the_other_open(start):
    q = shmtree.SimpleQueue()
    q.put(1)
    q._writer.close()
    assert q._writer.closed and not q._reader.closed and not q.closed
    with pytest.raises(OSError, match="closed"):
        q.put(2)
    assert q.get() == 1
    q._reader.close()
    assert q.closed
    with pytest.raises(OSError, match="closed"):
        q._reader.recv()


def close_the_halves(q):
    with q._writer:
        q.put("from the child")
    q._reader.close()


@pytest.mark.parametrize("method", START_METHODS)
def test_close_affects_this_process_only(start, method):
    q = shmtree.Queue()
    child = start(close_the_halves, q, method=method)
    child.join(60)
    assert child.exitcode == 0
    assert q.get() == "from the child"
    q.put("still open")


@pytest.mark.parametrize("method", START_METHODS)
def test_connection_wait_accepts_queue_readers(start, method):
    queues = [shmtree.Queue() for _ in range(3)]
    readers = [q._reader for q in queues]
    assert connection.wait(readers, timeout=0) == []
    start(queues[1].put, "x", method=method)
    assert connection.wait(readers, timeout=60) == [readers[1]]
    assert queues[1].get() == "x"
    assert connection.wait(readers, timeout=0) == []


def test_connection_wait_returns_the_ready_readers():
    first, second = shmtree.Queue(), shmtree.Queue()
    second.put("x")
    ready = connection.wait([first._reader, second._reader], timeout=60)
    assert second._reader in ready and first._reader not in ready and second._writer not in ready
    assert {first._reader: "first", second._reader: "second"}[ready[0]] == "second"


def test_selector_reports_messages_and_space():
    q = shmtree.Queue(1)
    with selectors.DefaultSelector() as selector:
        selector.register(q._reader, selectors.EVENT_READ, "message")
        selector.register(q._writer, selectors.EVENT_READ, "room")
        assert [key.data for key, _ in selector.select(0)] == ["room"]
        q.put(1)
        assert [key.data for key, _ in selector.select(0)] == ["message"]
        q.get()
        assert [key.data for key, _ in selector.select(0)] == ["room"]


def test_add_reader_is_called_for_each_message():
    q = shmtree.Queue()
    got = []

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def on_readable():
            got.append(q.get_nowait())
            if len(got) == 3:
                done.set_result(None)

        loop.add_reader(q._reader.fileno(), on_readable)
        for i in range(3):
            loop.call_soon(q.put, i)
        await asyncio.wait_for(done, 60)
        loop.remove_reader(q._reader.fileno())

    asyncio.run(main())
    assert got == [0, 1, 2]


def test_wait_accepts_queues_and_receivers(pair):
    sender, receiver = pair
    q = shmtree.JoinableQueue()
    assert shmtree.wait([q, receiver], timeout=0) == []
    q.put(1)
    assert shmtree.wait([q, receiver]) == [q]
    sender.put(2)
    assert shmtree.wait([q, receiver]) == [q, receiver]


def get_nothing(q, told):
    try:
        told.send(q.get_nowait())
    except queue.Empty:
        told.send("nothing")
    told.send(q.get(timeout=60))


def test_rlock_blocks_gets_of_other_processes(start):
    q = shmtree.Queue()
    here, there = mp.Pipe()
    with q._rlock:
        assert not q._rlock.acquire(False)
        assert not q._rlock.acquire(timeout=0.01)
        q.put("first")
        start(get_nothing, q, there)
        assert here.recv() == "nothing"
        assert q.get() == "first"
        q.put("second")
    assert here.recv() == "second"
    with pytest.raises(ValueError, match="too many times"):
        q._rlock.release()
    assert q._wlock.acquire()
    q._wlock.release()


def lock_and_hang(q, told):
    q._rlock.acquire()
    told.send("locked")
    told.recv()


def test_lock_of_a_killed_process_is_released(start):
    q = shmtree.Queue()
    here, there = mp.Pipe()
    child = start(lock_and_hang, q, there)
    here.recv()
    q.put(1)
    assert not q._rlock.acquire(False)
    child.kill()
    assert q.get(timeout=60) == 1
    assert q._rlock.acquire(timeout=60)


def test_put_async_waits_for_bytes_too():
    q = shmtree.Queue(max_bytes=3_000_000)
    large = np.zeros(2_000_000, np.uint8)

    async def main():
        await q.put_async(large)
        putting = asyncio.ensure_future(q.put_async(large, timeout=60))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not putting.done()
        q.get()
        await putting

    asyncio.run(main())
    assert q.qsize() == 1


def test_shutdown_ends_waiting_coroutines():
    q, full = shmtree.Queue(), shmtree.Queue(1)
    full.put(1)

    async def main():
        waiting = [asyncio.ensure_future(q.get_async()), asyncio.ensure_future(full.put_async(2))]
        await asyncio.sleep(0)
        q.shutdown()
        full.shutdown()
        for each in waiting:
            with pytest.raises(shmtree.ShutDown):
                await asyncio.wait_for(each, 60)

    asyncio.run(main())


@pytest.mark.parametrize(
    "wait",
    [
        lambda q: q.get(),
        lambda q: q.join(),
        lambda q: q._rlock.acquire(),
        lambda q: q._reader.poll(None),
        lambda q: q.put(b"x", timeout=None),
    ],
)
def test_ctrl_c_ends_every_wait(wait):
    q = shmtree.JoinableQueue(1)
    q._rlock.acquire()
    if wait.__code__.co_names[0] in ("join", "put"):
        q.put(1)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def wait_until_interrupted():
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        wait(q)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_until_interrupted()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
