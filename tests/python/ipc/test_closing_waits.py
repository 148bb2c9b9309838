"""Waits that continue after close(), and end once no process can satisfy them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from forks import fork, wait_until_all_sleep

import shmtree

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@contextlib.contextmanager
def waiting(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs a blocking call in a thread, which must end soon after the block.

    Yields a list that gets the result, or the class of the exception.
    """
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(call())
        except Exception as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until_all_sleep(1)
    yield ended
    thread.join(30)
    assert not thread.is_alive()


@contextlib.contextmanager
def other_process(act: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Forks a child with all objects of this process. Yields a function that makes the child call `act`."""
    reading, writing = os.pipe()

    def wait() -> None:
        os.close(writing)
        if os.read(reading, 1):
            act()

    child = fork(wait)
    os.close(reading)
    yield lambda: os.write(writing, b"x")
    os.close(writing)
    os.waitpid(child, 0)


def test_wait_for_memory_after_close_ends_with_the_last_end():
    arena = shmtree.Arena(4 << 20)
    sender, receiver = arena.create_pair(capacity=0)
    with contextlib.suppress(queue.Full, shmtree.OutOfSharedMemory):
        while True:
            sender.put_nowait(np.zeros(400_000, "uint8"))
    sender.close()
    with waiting(lambda: sender.new_empty(3 << 20, "uint8")) as ended:
        assert not ended
        receiver.close()
    assert ended == [shmtree.ChannelClosed]


WAITS_FOR_ACKS: list[Callable[[Any], Any]] = [
    lambda sender: sender.wait_for_ack(0),
    lambda sender: sender.wait_for_all_ack(),
    lambda sender: sender.flush(),
]


@pytest.mark.guarantee("close-ends-waits")
@pytest.mark.parametrize("wait", WAITS_FOR_ACKS, ids=["wait_for_ack", "wait_for_all_ack", "flush"])
@pytest.mark.parametrize("options", [{}, {"keep_open": "both"}, {"on_peer_death": "wait"}], ids=str)
def test_close_ends_a_wait_for_acks_while_a_receiver_is_open(wait, options):
    sender, receiver = shmtree.create_pair(**options)
    sender.put(1)
    with waiting(lambda: wait(sender)) as ended:
        sender.close()
    assert ended == [shmtree.ChannelClosed]
    assert receiver.get() == 1


@pytest.mark.guarantee("close-ends-waits")
def test_wait_for_acks_after_close_ends_with_the_last_end(arena):
    sender, receiver = arena.create_pair()
    sender.put(1)
    with other_process(lambda: None):  # the child could receive, but does not
        sender.close()
        with waiting(sender.wait_for_all_ack) as ended:
            assert not ended
            receiver.close()
        assert ended == [shmtree.ChannelClosed]


@pytest.mark.guarantee("join-after-close")
def test_join_continues_after_close_while_a_worker_lives():
    q = shmtree.JoinableQueue()
    q.put(1)
    with other_process(lambda: (q.get(), q.task_done())) as go:
        with waiting(q.join) as ended:
            q.close()
            assert not ended
            go()
        assert ended == [None]


@pytest.mark.guarantee("join-after-close")
def test_join_after_close_ends_when_the_last_worker_is_killed():
    q = shmtree.JoinableQueue()
    q.put(1)
    with other_process(lambda: os.kill(os.getpid(), signal.SIGKILL)) as go:
        with waiting(q.join) as ended:
            q.close()
            assert not ended
            go()
        assert ended == [shmtree.ChannelClosed]
