"""Functions that processes run with replay buffers in tests, in a module that spawned processes can import."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import shmtree
from shmtree.replay import ReplayBuffer


def count_rows(buffer: ReplayBuffer, sender: shmtree.Sender[Any]) -> None:
    sender.put(len(buffer))


def give_and_die(sender: shmtree.Sender[Any]) -> None:
    sender.put(ReplayBuffer(100, example=0))
    os.kill(os.getpid(), signal.SIGKILL)


def add_numbers(buffer: ReplayBuffer, first: int, count: int) -> None:
    for number in range(first, first + count):
        buffer.add(number)


def add_after_all_are_there(buffer: ReplayBuffer, barrier: Any, row: Any) -> None:
    barrier.wait(60)
    buffer.add(row)


def add_by_name(name: str, number: int) -> None:
    ReplayBuffer.open(name).add(number)


def answer_draws(buffer: ReplayBuffer, sender: shmtree.Sender, n: int) -> None:
    sender.put(buffer.sample(n, timeout=60).data)


def use_messages(receiver: shmtree.Receiver, sender: shmtree.Sender, number: int) -> None:
    buffer: Any = receiver.get(timeout=60)["buffer"]
    buffer.add(number)
    sender.put(len(buffer))
    receiver.get(timeout=60)


def add_until_killed(buffer: ReplayBuffer) -> None:
    number = os.getpid()
    while True:
        buffer.add(number)


def add_and_stay(buffer: ReplayBuffer, number: int) -> None:
    buffer.add(number)
    time.sleep(600)


def add_rows(buffer: ReplayBuffer, row: Any, timeout: float | None = None) -> None:
    while True:
        buffer.add(row, timeout=timeout)


def add_numbered_rows_until_killed(buffer: ReplayBuffer, row: Any) -> None:
    number = 0
    while True:
        buffer.add(row(number))
        number += 1


def add_then_hang(buffer: ReplayBuffer, numbers: list[int], told: Connection) -> None:
    writer = buffer.writer()
    for number in numbers:
        writer.add(number)
    told.send(os.getpid())
    told.recv()


def extend_then_hang(buffer: ReplayBuffer, numbers: list[int], told: Connection) -> None:
    buffer.extend(numbers)
    told.send(os.getpid())
    told.recv()


def sample_then_hang(buffer: ReplayBuffer, n: int, told: Connection) -> None:
    buffer.sample(n, timeout=100)
    told.send(os.getpid())
    told.recv()


def add_and_close(buffer: ReplayBuffer, number: int) -> None:
    writer = buffer.writer()
    writer.add(number)
    writer.close()
    buffer.close()


def add_and_sample(buffer: ReplayBuffer, number: int) -> None:
    buffer.add(number)
    buffer.sample(1, timeout=100)


def add_in_a_daemon(buffer: ReplayBuffer, number: int) -> None:
    """Adds in a daemon thread that is still adding when the process ends."""
    added = threading.Event()

    def add() -> None:
        buffer.add(number)
        added.set()
        while True:
            buffer.add(number)

    threading.Thread(target=add, daemon=True).start()
    added.wait(60)


def report_end(buffer: ReplayBuffer, call: str, told: Connection, *args: Any) -> None:
    """Reports the error that ended a blocking call, and the share of a core that it took."""
    told.send("ready")
    began, used = time.monotonic(), time.process_time()
    try:
        getattr(buffer, call)(*args, timeout=100)
    except shmtree.Error as error:
        spent = (time.process_time() - used) / (time.monotonic() - began)
        told.send((type(error).__name__, getattr(error, "pids", None), spent))
