"""The file descriptors that `shmtree.wait` opens: one per receiver, and none if it fails."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmtree
from shmtree import multiprocessing as shm_mp


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def more_descriptors(count: int) -> Iterator[None]:
    """Limits the process to `count` more descriptors than it has."""
    taken = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[0]), before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def receiver() -> tuple[Any, Any]:
    return shmtree.create_pair()


def queue_reader() -> tuple[Any, Any]:
    queue = shmtree.Queue()
    return queue, queue._reader


def connection() -> tuple[Any, Any]:
    there, here = shm_mp.Pipe()
    return there, here


def subscriber() -> tuple[Any, Any]:
    broadcast = shmtree.Broadcast(4)
    return broadcast, broadcast.subscribe()


KINDS = [receiver, queue_reader, connection, subscriber]


@pytest.mark.parametrize("make", KINDS)
def test_wait_opens_one_descriptor_per_receiver(make: Callable[[], tuple[Any, Any]]) -> None:
    made = [make() for _ in range(20)]
    waited_for = [each for _, each in made]
    before = descriptors()

    assert shmtree.wait(waited_for, timeout=0) == []

    assert descriptors() <= before + 20 + 1  # 1: the socket that this process sends wake-ups with


@pytest.mark.parametrize("make", KINDS)
def test_failed_wait_leaves_no_descriptor_open(make: Callable[[], tuple[Any, Any]]) -> None:
    made = [make() for _ in range(20)]
    waited_for = [each for _, each in made]
    shmtree.wait(waited_for[:3], timeout=0)
    before = descriptors()

    with more_descriptors(10):
        limited = descriptors()
        with pytest.raises(OSError, match="Too many open files"):
            shmtree.wait(waited_for, timeout=0.1)
        assert descriptors() <= limited + 1

    assert descriptors() <= before + 1
    assert shmtree.wait(waited_for[:3], timeout=0) == []


def test_wait_watches_peers_with_one_descriptor_per_receiver() -> None:
    program = """
import os, signal, shmtree
made, children = [], []
read, write = os.pipe()
for _ in range(8):
    sender, receiver = shmtree.create_pair()
    child = os.fork()
    if child == 0:
        receiver.close()
        os.read(read, 1)
        os._exit(0)
    sender.close()
    made.append(receiver)
    children.append(child)
before = len(os.listdir("/proc/self/fd"))
assert shmtree.wait(made, timeout=0.01) == []
assert len(os.listdir("/proc/self/fd")) <= before + 8 + 1
os.kill(children[3], signal.SIGKILL)
assert shmtree.wait(made, timeout=60) == [made[3]]
os.write(write, b"12345678")
for child in children:
    os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize("make", KINDS)
def test_wait_returns_a_message_after_a_failed_wait(make: Callable[[], tuple[Any, Any]]) -> None:
    made = [make() for _ in range(4)]
    waited_for = [each for _, each in made]
    with more_descriptors(3), pytest.raises(OSError, match="Too many open files"):
        shmtree.wait(waited_for, timeout=0.1)

    giver = made[2][0]
    giver.send(1) if hasattr(giver, "send") else giver.put(1)

    assert shmtree.wait(waited_for, timeout=60) == [waited_for[2]]
