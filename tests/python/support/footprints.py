"""Names, descriptors and memory that this process uses."""

from __future__ import annotations

import os
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

import shmtree


def own_names() -> list[Any]:
    """Returns the names of this test process that still exist."""
    directory = Path(os.environ["SHMTREE_NAMES_DIR"])
    return [known for known in shmtree.list_names() if (directory / known.name).exists()]


def footprint() -> tuple[int, int, int]:
    """Returns the numbers of names, of descriptors, and of mappings of arenas.

    The descriptor of multiprocessing's resource tracker does not count: newer Pythons close it in a child of `os.fork`
    (CPython's issue 146313).
    """
    with open("/proc/self/maps") as maps:
        mappings = sum("memfd:shmtree" in line for line in maps)
    descriptors = set(os.listdir("/proc/self/fd")) - {str(resource_tracker._resource_tracker._fd)}
    return len(own_names()), len(descriptors), mappings


def warm_up() -> None:
    """Creates what a process creates once: the socket that wake-ups are sent through."""
    with shmtree.Arena(1 << 20) as arena:
        sender, receiver = arena.create_pair()
        receiver.fileno()
        sender.put(1)
        receiver.get()
        sender.close()
        receiver.close()


def use(sender: Any, receiver: Any) -> None:
    """Uses both ends, so that this process has all resources that a user of them has."""
    receiver.fileno()
    sender.put({"x": np.zeros(100_000)})
    assert receiver.get()["x"].sum() == 0
