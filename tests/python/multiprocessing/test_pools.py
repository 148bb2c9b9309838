"""Pools with our queues: workers end with their creator, and blocked threads see no spurious wake-ups."""

from __future__ import annotations

import ctypes
import multiprocessing as standard
import multiprocessing.sharedctypes
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

import pool_tasks
import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL
from starts import START_METHODS

import shmtree
from shmtree import multiprocessing as mp

#: Seconds after which a call counts as hung. No passing test waits for that long.
SOON = 60


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Returns start(function, *arguments, method="fork"), which starts a child.

    The child gets a pipe as its last argument.
    """
    children: list[Any] = []

    def run(function: Callable[..., None], *arguments: Any, method: str = "fork") -> Any:
        mine, theirs = standard.Pipe()
        process = standard.get_context(method).Process(target=function, args=(*arguments, theirs))
        process.start()
        theirs.close()
        children.append(process)
        return process, mine

    yield run
    for process in children:
        process.kill()
        process.join()


def make_pool_and_hang(method: str, told: Any) -> None:
    with mp.get_context(method).Pool(2) as pool:
        pool.map(pool_tasks.square, range(4))
        told.send([worker.pid for worker in pool._pool])  # type: ignore[attr-defined]
        signal.pause()


@pytest.mark.guarantee("pool-exit")
@pytest.mark.parametrize("method", START_METHODS)
def test_workers_exit_when_the_process_of_their_pool_is_killed(method: str) -> None:
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    here, there = standard.Pipe()
    maker = standard.get_context("spawn").Process(target=make_pool_and_hang, args=(method, there))
    maker.start()
    assert here.poll(SOON)
    workers = here.recv()
    maker.kill()
    maker.join()
    try:
        assert until(lambda: not any(map(is_running, workers)))
    finally:
        for worker in filter(is_running, workers):
            os.kill(worker, signal.SIGKILL)


def get_until_the_end(queue: Any, told: Any) -> None:
    queue._writer.close()
    told.send("closed")
    items = []
    try:
        while True:
            items.append(queue.get())
    except EOFError as error:
        told.send((items, type(error).__name__))


@pytest.mark.guarantee("pool-exit")
@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("method", START_METHODS)
def test_get_raises_eof_error_when_no_process_has_the_writer(start: Any, method: str, how: str) -> None:
    queue = mp.get_context(method).SimpleQueue()
    receivers = [start(get_until_the_end, queue, method=method) for _ in range(2)]
    sender, there = start(put_some_and_hang, queue, method=method)
    for _, told in receivers:
        assert told.recv() == "closed"
    queue._writer.close()
    assert there.recv() == "put"
    if how == "kill":
        sender.kill()
    else:
        there.send("close")
    found = [told.recv() for _, told in receivers if told.poll(SOON)]
    assert sorted(item for items, _ in found for item in items) == [0, 1, 2]
    assert {error for _, error in found} == {"ChannelClosed"}


def put_some_and_hang(queue: Any, told: Any) -> None:
    for number in range(3):
        queue.put(number)
    told.send("put")
    told.recv()
    queue.close()
    told.recv()


def test_a_process_with_both_halves_sees_no_end(start: Any) -> None:
    queue = shmtree.SimpleQueue()  # type: shmtree.SimpleQueue[int]
    process, told = start(put_some_and_hang, queue)
    assert told.recv() == "put"
    process.kill()
    process.join()
    assert [queue.get() for _ in range(3)] == [0, 1, 2]
    assert not queue._reader.poll(0.5)
    queue.put(4)
    assert queue.get() == 4


def wait_for_the_end(queue: Any, told: Any) -> None:
    queue._writer.close()
    told.send("closed")
    assert told.recv() == "one has it"
    reader = queue._reader
    assert connection.wait([reader], 0) == []
    told.send("waits")
    told.send((connection.wait([reader], SOON) == [reader], reader.poll(SOON)))


@pytest.mark.guarantee("pool-exit")
@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("method", START_METHODS)
def test_wait_and_poll_find_the_end_of_a_reader(start: Any, method: str, how: str) -> None:
    queue = mp.get_context(method).SimpleQueue()
    _, told = start(wait_for_the_end, queue, method=method)
    sender, there = start(put_none_and_hang, queue, method=method)
    assert there.recv() == "has it"
    assert told.recv() == "closed"
    queue._writer.close()
    told.send("one has it")
    assert told.recv() == "waits"
    if how == "kill":
        sender.kill()
    else:
        there.send("close")
    assert told.poll(SOON) and told.recv() == (True, True)


def put_none_and_hang(queue: Any, told: Any) -> None:
    told.send("has it")
    told.recv()
    queue.close()
    told.recv()


def put_until_the_end(queue: Any, told: Any) -> None:
    queue._reader.close()
    queue.put("while others have it")
    told.send("closed")
    assert told.recv() == "closed, too"
    try:
        queue.put("for no process")
    except BrokenPipeError as error:
        told.send(type(error).__name__)


@pytest.mark.guarantee("pool-exit")
@pytest.mark.parametrize("method", START_METHODS)
def test_put_raises_broken_pipe_error_without_any_reader(start: Any, method: str) -> None:
    queue = mp.get_context(method).SimpleQueue()
    _, told = start(put_until_the_end, queue, method=method)
    assert told.recv() == "closed"
    queue._reader.close()
    told.send("closed, too")
    assert told.poll(SOON) and told.recv() == "ChannelClosed"


def put_into_full(queue: Any, told: Any) -> None:
    queue._reader.close()
    told.send("closed")
    try:
        queue.put("waits for room")
    except BrokenPipeError as error:
        told.send(type(error).__name__)


def test_blocked_put_raises_when_the_last_reader_is_killed(start: Any) -> None:
    queue = shmtree.Queue(1)  # type: shmtree.Queue[Any]
    receiver, there = start(put_none_and_hang, queue)
    assert there.recv() == "has it"
    queue.put("the only place")
    _, told = start(put_into_full, queue)
    assert told.recv() == "closed"
    queue._reader.close()
    receiver.kill()
    assert told.poll(SOON) and told.recv() == "ChannelClosed"


def answer(requests: Any, answers: Any, answered: Any, told: Any) -> None:
    for request in iter(requests.get, None):
        answers.put(request)
        answered.value = request
    answers.put(None)


def readable_without_releasing_the_gil(descriptor: int) -> Callable[[], bool]:
    """Returns a function that returns True if `descriptor` is readable.

    No other Python thread can run during its call.
    """
    poll = ctypes.PyDLL(None).poll  # PyDLL keeps the GIL, unlike select.poll
    request = struct.pack("ihh", descriptor, select.POLLIN, 0)
    buffer = ctypes.create_string_buffer(request, len(request))
    return lambda: bool(poll(buffer, 1, 0) == 1)


@pytest.mark.guarantee("poll-and-gil")
@pytest.mark.skipif(WITHOUT_GIL, reason="this Python has no GIL that a thread could keep")
def test_blocked_getter_claims_its_message_before_it_has_the_gil(start: Any) -> None:
    requests, answers = shmtree.SimpleQueue(), shmtree.SimpleQueue()  # type: Any, Any
    answered = multiprocessing.sharedctypes.RawValue("Q", 0)
    start(answer, requests, answers, answered)
    readable = readable_without_releasing_the_gil(answers._reader.fileno())
    claimed = False

    def watch() -> None:
        nonlocal claimed
        end = time.monotonic() + SOON
        for number in range(1, 1_000_000):
            time.sleep(0.01)  # the main thread blocks in get()
            requests.put(number)
            # From here to the end of the round, this thread keeps the GIL, so that the main thread receives nothing.
            round_end = time.monotonic() + 2
            while answered.value != number and time.monotonic() < round_end:
                pass
            while readable() and time.monotonic() < round_end:
                pass
            claimed = answered.value == number and not readable()
            if claimed or time.monotonic() > end:
                break
        requests.put(None)

    watcher = threading.Thread(target=watch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # a thread that asks for the GIL waits until it is released
    try:
        watcher.start()
        for _ in iter(answers.get, None):
            pass
        watcher.join()
    finally:
        sys.setswitchinterval(interval)
    assert claimed


def test_queue_in_transit_counts_as_reader_and_writer() -> None:
    q = mp.get_context("fork").SimpleQueue()
    carrier = mp.get_context("fork").SimpleQueue()
    carrier.put(q)
    q._writer.close()
    assert not q._reader.poll(0.3)
    carrier.get().put("x")
    assert q.get() == "x"
