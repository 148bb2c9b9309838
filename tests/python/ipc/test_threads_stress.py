"""Many threads of one process use all functions of ends at once, for SHMTREE_STRESS_SECONDS (default 2).

Meant for an interpreter without a GIL, where the threads are in shmtree's code in parallel: `./dev free-threaded` runs
it there for longer, also under sanitizers. With a GIL it shows that waits and copies release the GIL.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import pytest
from test_threads import at_once

import shmtree

SECONDS = float(os.environ.get("SHMTREE_STRESS_SECONDS", "2"))
GIL_DISABLED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def message(sender: Any, number: int, turn: int, random_: random.Random) -> dict[str, Any]:
    """Returns a message that is sent inline, copied, or created in the arena and moved.

    `of` determines its contents.
    """
    size = random_.choice([0, 10, 3_000, 20_000])
    if random_.random() < 0.3 and size:
        array = sender.new_empty(size, np.int32)
        array[:] = turn
    else:
        array = np.full(size, turn, np.int32)
    return {"of": (number, turn), "x": array, "more": [turn, "text", {"deep": turn}]}


def is_whole(item: dict[str, Any]) -> bool:
    turn = item["of"][1]
    return bool((item["x"] == turn).all()) and item["more"] == [turn, "text", {"deep": turn}]


def receive(receiver: Any, turn: int, timeout: float) -> list[Any]:
    """Receives in one of several ways. Returns the messages, without those that it returns to the channel."""
    if turn % 4 == 0:
        return list(receiver.get_many(5, timeout=timeout))
    if turn % 4 == 1:
        delivery = receiver.take(timeout=timeout)
        item = delivery.item
        if turn % 16 == 1:
            delivery.nack()
            return []
        delivery.ack()
        return [item]
    return [receiver.get(timeout=timeout, copy=turn % 4 == 2)]


@pytest.mark.parametrize("capacity", [4, None])
def test_every_message_arrives_once_by_any_receive_method(arena: shmtree.Arena, capacity: int | None) -> None:
    sender, receiver = arena.create_pair(capacity=capacity)
    over = time.monotonic() + SECONDS
    sent: list[list[tuple[int, int]]] = [[] for _ in range(8)]
    got: list[list[tuple[int, int]]] = [[] for _ in range(8)]
    sending = [None] * 4  # the thread that pops the last one closes the sender
    settling = threading.Lock()
    views: deque[Any] = deque(maxlen=20)  # freed by whichever thread appends the next one

    def send(number: int) -> None:
        random_ = random.Random(number)
        turn = 0
        try:
            while time.monotonic() < over:
                turn += 1
                if capacity is None and sender.pending_acks > 100:
                    sender.wait_for_all_ack(timeout=60)
                if turn % 7 == 0:
                    sender.put_many([message(sender, number, turn, random_)])
                else:
                    sender.put(message(sender, number, turn, random_))
                sent[number].append((number, turn))
        finally:
            with settling:
                sending.pop()
                if not sending:
                    sender.close()

    def take_part(number: int) -> None:
        for turn in range(number, sys.maxsize):
            try:
                items = receive(receiver, turn, timeout=60)
            except shmtree.ChannelClosed:
                return
            assert all(is_whole(item) for item in items)
            got[number] += [item["of"] for item in items]
            views.extend(item["x"] for item in items)

    at_once(lambda number: send(number) if number < 4 else take_part(number), 8)

    everything = sorted(each for one in got for each in one)
    assert everything == sorted(each for one in sent for each in one)
    assert len(everything) > 20
    views.clear()
    receiver.close()


def test_ends_are_made_used_and_closed_by_threads_at_once(arena: shmtree.Arena) -> None:
    over = time.monotonic() + SECONDS
    current: list[Any] = [arena.create_pair(capacity=2)]

    def replace() -> None:
        current[0] = arena.create_pair(capacity=2)

    def look() -> None:
        sender, receiver = current[0]
        arena.stats(), arena.holders(), arena.trim()
        repr((sender, receiver)), receiver.qsize(), receiver.empty(), sender.has_space(), sender.closed

    def put() -> None:
        current[0][0].put({"x": np.arange(3_000)}, timeout=0.01)

    def get() -> None:
        assert (current[0][1].get(timeout=0.01)["x"] == np.arange(3_000)).all()

    def close() -> None:
        for end in current[0]:
            end.close()
        replace()

    works = [put, put, get, get, look, look, replace, close]

    def work(number: int) -> None:
        while time.monotonic() < over:
            try:
                works[number]()
            except (queue.Full, queue.Empty, shmtree.ChannelClosed, shmtree.PeerDied, shmtree.OutOfSharedMemory):
                pass
            except ValueError as error:  # another thread closed the end before the call
                assert "closed" in str(error)

    at_once(work, len(works))
    current.clear()


def test_threads_share_a_queue(arena: shmtree.Arena) -> None:
    channel = arena.Queue(4)
    over = time.monotonic() + SECONDS
    counts = [0] * 6

    def work(number: int) -> None:
        if number % 2:
            while time.monotonic() < over:
                channel.put({"of": (number, counts[number])})
                counts[number] += 1
            channel.put(None)
        else:
            while channel.get() is not None:
                counts[number] += 1

    at_once(work, len(counts))
    assert sum(counts[0::2]) == sum(counts[1::2]) > 0
    channel.close()


@pytest.mark.skipif(not GIL_DISABLED, reason="this Python has a GIL")
def test_importing_shmtree_does_not_enable_the_gil() -> None:
    code = "import sys, shmtree, shmtree.multiprocessing; print(sys._is_gil_enabled())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHON_GIL"},
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
