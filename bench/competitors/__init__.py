"""One small file per competitor, each with a class `Competitor`; `NAMES` has them in the order of the tables.

A competitor is made in a process that then forks those that use it: one calls `sender()` and gets a function that
puts, another `receiver()` and gets one that takes. What needs a connection of its own opens it there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

# Module of this package by the name that the tables show.
NAMES: dict[str, str] = {
    "shmtree": "shmtree_pair",
    "shmtree.Queue": "shmtree_queue",
    "multiprocessing.Queue": "mp_queue",
    "multiprocessing.SimpleQueue": "mp_simple_queue",
    "multiprocessing.Pipe": "mp_pipe",
    "torch.multiprocessing": "torch_queue",
    "py-sharedmemory": "sharedmemory_pair",
    "faster-fifo": "fifo_pickled",
    "faster-fifo, bytes": "fifo_bytes",
    "SPDL pool": "spdl_pool",
    "SPDL ring": "spdl_ring",
    "pyzmq": "zmq_ipc",
    "iceoryx2": "iceoryx",
    "Ray": "ray_store",
}
OURS = "shmtree"


class Unsupported(Exception):
    """The competitor cannot do this workload; the message says why and becomes its row."""


class Base:
    """What an adapter offers: construction, put, get, close; the rest where it can."""

    requires: ClassVar[tuple[str, ...]] = ()  # distributions whose versions are reported
    is_shared: ClassVar[bool] = False  # may have several producers and consumers
    is_deep: ClassVar[bool] = True  # can hold thousands of messages that nobody takes
    is_bounded: ClassVar[bool] = False  # a put waits when `capacity` messages are in it
    lends_bytes: ClassVar[bool] = False  # bytes arrive as a memoryview
    shares_tensors: ClassVar[bool] = False  # a tensor that was put is the receiver's too: it has to be copied before
    copies: ClassVar[float] = 4  # of a large payload in memory at once, the producer's own included

    servers: ClassVar[list[int]] = []  # processes that all of its channels share

    @classmethod
    def start(cls) -> None:
        """Once, before the first channel: what needs a server starts it here; it is ended with all else."""

    @classmethod
    def sweep(cls) -> None:
        """After channels of which some may have been killed: remove what they left."""

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        """A channel for `capacity` messages of about `nbytes`, of this type."""
        raise NotImplementedError

    def sender(self) -> Callable[[Any], Any]:
        raise NotImplementedError

    def receiver(self) -> Callable[[], Any]:
        raise NotImplementedError

    def loan(self) -> Callable[[tuple[int, ...]], Any] | None:
        """After `sender()`: gives a float32 array that the sender's put does not copy, or None."""
        return None

    def forward(self, put: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The put that passes on what was received from another channel of the same kind."""
        return put

    def close(self) -> None:
        """In the process that made it, after those that used it."""


def load(name: str) -> type[Base]:
    """Raises ImportError where the competitor is not installed."""
    competitor: type[Base] = importlib.import_module(f"bench.competitors.{NAMES[name]}").Competitor
    return competitor
