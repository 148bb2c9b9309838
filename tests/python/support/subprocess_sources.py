"""Iterables for the subprocesses of test_subprocess_iteration.py and test_spdl.py."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import shmtree
import shmtree.spdl


def batches(count: int, items: int = 50_000) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"i": i, "x": np.full(items, i, np.float32)}


def for_ever(made: Path) -> Iterator[int]:
    """Yields numbers forever, and creates a file when it is closed."""
    try:
        number = 0
        while True:
            yield number
            number += 1
    finally:
        made.touch()


def counting(made: shmtree.SharedArray, count: int) -> Iterator[int]:
    for number in range(count):
        made.array[0] = number + 1
        yield number


class NotPickled(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class NotLoaded(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class NotPrinted(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("nor this one")

    def __str__(self) -> str:
        raise TypeError("in no way")


class LoadsNowhere:
    def __reduce__(self) -> Any:
        return fail_to_load, ()


def fail_to_load() -> None:
    raise LookupError("not here")


def failing(how: str) -> Iterator[str]:
    yield "first"
    fail_deep_inside(how)


def fail_deep_inside(how: str) -> None:
    if how == "exits":
        sys.exit("by itself")
    if how == "vanishes":
        os._exit(3)
    raise {
        "raises": KeyError("lost"),
        "stops": StopIteration("too early"),
        "is not pickled": NotPickled("odd"),
        "is not loaded": NotLoaded("odd", "too"),
        "is not printed": NotPrinted(),
    }[how]


def cannot_be_made(how: str) -> Iterator[str]:
    raise {"raises": ValueError("no iterable"), "stops": StopIteration("no iterable")}[how]


def one_that_cannot_be_sent() -> Iterator[Any]:
    yield "first"
    yield lambda: None


def leaves_a_thread() -> Iterator[str]:
    threading.Thread(target=threading.Event().wait).start()
    yield "only"


def pid_and_sleep() -> Iterator[int]:
    yield os.getpid()
    time.sleep(1000)


def ends_with_its_loop(how: str) -> None:
    """A program that starts a sleeping subprocess, prints its pid, and ends in one of several ways."""
    items = shmtree.iterate_in_subprocess(pid_and_sleep)
    for pid in items:
        print(pid, flush=True)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "left open":
            return


def write_units(pool: shmtree.spdl.SegmentPool, count: int, told: Connection) -> None:
    """Writes units with one binary each, reports their places, and waits to be killed."""
    writer = pool.open_writer()
    for i in range(count):
        writer.begin_unit()
        place = writer.write_binary(bytes([i]) * 100_000)
        told.send((place, writer.commit_unit()))
    told.recv()


def make_pool(told: Connection) -> None:
    """Sends a pool for one segment, and waits to be killed."""
    pool = shmtree.spdl.SegmentPool(count=1, acquire_timeout=3600)
    told.send(pool)
    told.recv()


class Squares:
    """An iterable that can be iterated repeatedly."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(self.count):
            yield {"i": i, "x": np.full(50_000, i * i, np.int64), "blob": bytes([i]) * 100_000, "small": b"s"}


def eight_squares() -> Squares:
    return Squares(8)
