"""What processes do with replay buffers in tests: at the top of a module, so that spawned ones find it."""

from __future__ import annotations

import os
import time
from typing import Any

import shmtree
from shmtree.replay import ReplayBuffer


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


def use_what_comes(receiver: shmtree.Receiver, sender: shmtree.Sender, number: int) -> None:
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
