"""A program that closes all descriptors and opens its own files under their numbers, as a daemon does.

Run as `python closing_programs.py CASE FILLER WHERE FOLDER`. Prints the outcome of each step of the case as JSON.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

import shmtree
from shmtree import multiprocessing as shm_mp
from shmtree.recording import Recording
from shmtree.recording._mcap import Writer
from shmtree.replay import ReplayBuffer

Steps = dict[str, Callable[[], Any]]

MINE = b"mine" * 100
LARGE = np.ones(8 << 20, np.uint8)


def pair(_: str) -> Steps:
    sender, receiver = shmtree.create_pair(capacity=None, name=f"closing-{os.getpid()}")
    sender.put(1)
    return {
        "grow": lambda: sender.put(LARGE, timeout=10),
        "small": lambda: (sender.put(2, timeout=10), receiver.get(timeout=10)),
        "fileno": receiver.fileno,
        "wait": lambda: shmtree.wait([receiver], timeout=0.1),
        "hand on": lambda: ForkingPickler.dumps(sender),
        "get": lambda: [receiver.get(timeout=0.3) for _ in range(9)],
        "new_empty": lambda: sender.new_empty(1 << 22),
    }


def watched(_: str) -> Steps:
    """A pair with descriptors in use: by a poll loop, by a wait and by a coroutine."""
    import asyncio

    sender, receiver = shmtree.create_pair()
    told, teller = shmtree.create_pair()
    child = os.fork()
    if child == 0:
        try:
            teller.get(timeout=60)
        finally:
            os._exit(0)
    teller.close()
    select.select([receiver.fileno()], [], [], 0)
    sender.put(1)
    select.select([receiver.fileno()], [], [], 10)
    receiver.get(timeout=10)
    shmtree.wait([receiver], timeout=0)
    told._fileno_to_put()

    async def await_one() -> Any:
        async def put() -> None:
            sender.put(3)

        return (await asyncio.gather(receiver.get_async(timeout=10), put()))[0]

    asyncio.run(await_one())

    def end_child() -> None:
        told.put(1, timeout=10)
        os.waitpid(child, 0)

    return {
        "put": lambda: sender.put(2, timeout=10),
        "fileno": receiver.fileno,
        "wait": lambda: shmtree.wait([receiver], timeout=0.1),
        "get": lambda: receiver.get(timeout=0.3),
        "async": lambda: asyncio.run(await_one()),
        "end": end_child,
    }


def queue(_: str) -> Steps:
    made = shmtree.Queue()
    made.put(1)
    made._reader.fileno()
    return {
        "grow": lambda: made.put(LARGE, timeout=10),
        "fileno": made.fileno,
        "get": lambda: [made.get(timeout=0.3) for _ in range(9)],
        "poll": lambda: made._reader.poll(0.1),
    }


def pipe(_: str) -> Steps:
    here, there = shm_mp.Pipe()
    there.send(1)
    here.fileno()
    return {
        "grow": lambda: there.send(LARGE),
        "fileno": here.fileno,
        "recv": lambda: [here.recv() for _ in range(2) if here.poll(0.1)],
        "poll": lambda: here.poll(0.3),
    }


def latest(_: str) -> Steps:
    made = shmtree.Latest(name=f"closing-latest-{os.getpid()}")
    made.publish(1)
    return {
        "grow": lambda: made.publish(LARGE),
        "get": lambda: made.get(timeout=0.3),
        "wait": lambda: made.get(newer_than=1 << 40, timeout=0.5),
    }


def broadcast(_: str) -> Steps:
    made = shmtree.Broadcast(4)
    subscriber = made.subscribe()
    made.put(1)
    subscriber.fileno()
    return {
        "grow": lambda: made.put(LARGE),
        "fileno": subscriber.fileno,
        "wait": lambda: shmtree.wait([subscriber], timeout=0.1),
        "get": lambda: [subscriber.get(timeout=0.5) for _ in range(9)],
    }


def replay(folder: str) -> Steps:
    row = {"x": np.ones(1 << 18, np.uint8)}
    made = ReplayBuffer(10_000, example=row)
    for _ in range(8):
        made.add(row)
    made.save(f"{folder}/before")

    def add_many() -> None:
        for _ in range(400):
            made.add(row)

    return {
        "grow": add_many,
        "sample": lambda: made.sample(4, timeout=0.5),
        "save": lambda: made.save(f"{folder}/after"),
        "load": lambda: len(ReplayBuffer.load(f"{folder}/before")),
    }


def shared_array(_: str) -> Steps:
    arena = shmtree.Arena(1 << 28)
    made = arena.array(1000, name=f"closing-array-{os.getpid()}")

    def write() -> float:
        with made.write() as view:
            view[:] = 1
        return float(made.read().sum())

    return {
        "write": write,
        "hand on": lambda: ForkingPickler.dumps(made),
        "grow": lambda: arena.new_zeros(1 << 22),
        "wait": lambda: made.wait(1 << 40, timeout=0.5),
    }


def arena(_: str) -> Steps:
    made = shmtree.Arena(1 << 28, name=f"closing-arena-{os.getpid()}")
    kept = made.new_zeros(1000)
    return {
        "grow": lambda: made.new_zeros(1 << 22),
        "pair": made.create_pair,
        "stats": lambda: made.stats()["used_bytes"] > 0,
        "trim": made.trim,
        "kept": lambda: float(kept.sum()),
        "hand on": lambda: ForkingPickler.dumps(made),
    }


def service(_: str) -> Steps:
    server: shmtree.Service[Any] = shmtree.Service()
    client = shmtree.Client(server.sender)
    answer = client.submit(1, timeout=10)
    server.get(timeout=10).reply(2)
    assert answer.result(timeout=10) == 2
    return {
        "grow": lambda: client.submit(LARGE, timeout=10),
        "get": lambda: [server.get(timeout=0.3) for _ in range(9)],
        "call": lambda: client.call(1, timeout=0.5),
    }


def recording(folder: str) -> Steps:
    done = Writer(f"{folder}/done.mcap")
    number = done.add_channel("a")
    done.write(number, [(1, 0, shmtree.pack(1))])
    done.close()
    opened = Recording(f"{folder}/done.mcap")
    writer = Writer(f"{folder}/open.mcap")
    writer.add_channel("a")
    writer.begin()
    return {
        "write": lambda: writer.write(number, [(1, 0, shmtree.pack(1))]),
        "close": writer.close,
        "read": lambda: [message.load() for message in opened],
    }


CASES = {case.__name__: case for case in (
    pair, watched, queue, pipe, latest, broadcast, replay, shared_array, arena, service, recording,
)}  # fmt: skip


def open_numbers() -> set[int]:
    numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    for number in list(numbers):
        try:
            os.fstat(number)
        except OSError:  # the descriptor of the listing is closed by now
            numbers.discard(number)
    return numbers


class Files:
    """Opens a file of 400 bytes under each number."""

    def __init__(self, numbers: list[int], folder: str) -> None:
        self.numbers = numbers
        for number in numbers:
            fd = os.open(f"{folder}/mine-{number}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, MINE)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
        self.folder = folder

    def check(self) -> None:
        for number in self.numbers:
            path = f"{self.folder}/mine-{number}"
            assert os.fstat(number).st_size == len(MINE), f"{path} has {os.fstat(number).st_size} bytes"
            assert os.readlink(f"/proc/self/fd/{number}") == os.path.realpath(path)
            assert os.lseek(number, 0, os.SEEK_CUR) == len(MINE), "its position was moved"
            with open(path, "r+b") as other:
                assert other.read() == MINE
                lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock)  # BlockingIOError if a byte of it is locked


class Sockets:
    """Opens a socket with a waiting datagram under each number."""

    def __init__(self, numbers: list[int], folder: str) -> None:
        self.numbers = numbers
        self.others = []
        for number in numbers:
            mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            other.send(b"mine")
            os.dup2(mine.fileno(), number)
            mine.close()
            self.others.append(other)

    def check(self) -> None:
        for number, other in zip(self.numbers, self.others, strict=True):
            mine = socket.socket(fileno=os.dup(number))
            mine.setblocking(False)
            assert mine.recv(100) == b"mine"
            mine.close()
            other.send(b"mine")
            other.setblocking(False)
            try:
                raise AssertionError(f"sent by shmtree: {other.recv(100)!r}")
            except BlockingIOError:
                pass


class Epolls:
    """Opens an epoll descriptor of the program, which watches a pipe, under each number."""

    def __init__(self, numbers: list[int], folder: str) -> None:
        self.numbers = numbers
        read, _ = os.pipe()
        for number in numbers:
            poller = select.epoll()
            poller.register(read, select.EPOLLIN)
            os.dup2(poller.fileno(), number)
            poller.close()
        self.pipe = read

    def check(self) -> None:
        for number in self.numbers:
            with open(f"/proc/self/fdinfo/{number}") as about:
                watched_ = [line.split()[1] for line in about if line.startswith("tfd:")]
            assert watched_ == [str(self.pipe)]


FILLERS = {"files": Files, "sockets": Sockets, "epolls": Epolls}


def outcome(step: Callable[[], Any]) -> str:
    try:
        step()
    except OSError as error:
        if error.errno == errno.EBADF and "shmtree.descriptors()" in str(error):
            return "closed"  # the error says that the descriptor was closed, and how to close all descriptors safely
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def main(case: str, filler: str, where: str, folder: str) -> None:
    if where.endswith("-low"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    before = open_numbers()
    steps = CASES[case](folder)
    ours = sorted(open_numbers() - before)
    assert ours
    assert set(ours) <= set(shmtree.descriptors())
    if where.startswith("spared"):
        kept = shmtree.descriptors()
        ours = [number for number in range(3, 200) if number not in kept]
    for number in ours:
        with contextlib.suppress(OSError):
            os.close(number)
    mine = FILLERS[filler](ours if not where.startswith("spared") else ours[:10], folder)
    child = os.fork() if where.startswith("child") else 0
    if child:
        started = time.monotonic()
        assert os.waitpid(child, 0)[1] == 0
        assert time.monotonic() - started < 600
    else:
        done = {name: outcome(step) for name, step in steps.items()}
        steps.clear()
        gc.collect()
        print(json.dumps(done), flush=True)
    mine.check()
    if where.startswith("child") and child == 0:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
