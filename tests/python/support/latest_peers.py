"""Functions that other processes run in the tests of Latest."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import shmtree


def is_whole(value: dict[str, Any]) -> bool:
    """Returns True if all elements of a value of `weights` are of one version."""
    first = value["w0"][0]
    return all((each == first).all() for each in value.values())


def weights(number: int, arrays: int = 8, elements: int = 4096) -> dict[str, Any]:
    return {f"w{i}": np.full(elements, number, np.int64) for i in range(arrays)}


def publish_for_ever(latest: shmtree.Latest, told: Connection) -> None:
    told.send(os.getpid())
    for number in range(1, 1 << 40):
        latest.publish(weights(number))


def publish_when_told(latest: shmtree.Latest, told: Connection) -> None:
    """Answers "come", and publishes after any other message."""
    while told.recv() == "come":
        told.send("here")
    latest.publish("first")
    told.recv()


def read_on(latest: shmtree.Latest, told: Connection, until: int) -> None:
    """Reads newer versions up to `until` or more. Reports True if each one was intact and newer."""
    version, right = 0, True
    while version < until:
        newer, value = latest.get(newer_than=version, timeout=100)
        right = right and newer > version and is_whole(value)
        version = newer
    told.send(right)


def report_one(latest: shmtree.Latest, told: Connection, newer_than: int = 0) -> None:
    told.send("ready")
    told.send(latest.get(newer_than, timeout=100))


def make_then_end(name: str, told: Connection, end: str) -> None:
    """Makes a Latest, and ends without having published."""
    latest: shmtree.Latest = shmtree.Latest(name=name)
    told.send(os.getpid())
    told.recv()
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "close":
        latest.close()
        told.recv()


def wait_idly(latest: shmtree.Latest, told: Connection, seconds: float) -> None:
    """Reports the share of a core that a wait of that length took."""
    version, _ = latest.get(timeout=100)
    told.send("ready")
    began, used = time.monotonic(), time.process_time()
    try:
        latest.get(newer_than=version, timeout=seconds)
    except Exception:  # Empty
        told.send((time.process_time() - used) / (time.monotonic() - began))


def hold_and_hang(latest: shmtree.Latest, told: Connection) -> None:
    kept = latest.get(timeout=100)
    told.send(os.getpid())
    told.recv()
    del kept
