"""Has one small file per competitor, each with a class `Competitor`. `NAMES` lists them in the order of the tables.

A process creates the competitor, then forks the processes that use it. One calls `sender()`, which returns a put
function. Another calls `receiver()`, which returns a get function. A competitor that needs a connection per process
opens it there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

# Modules of this package, by the name in the tables.
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
    "cloudtoid": "cloudtoid",
    "subetha-ipc": "subetha_ring",
    "zerochannel": "zerochannel_ring",
    "Ray": "ray_store",
}
OURS = "shmtree"
#: Those in the charts and the short table of docs/benchmarks.md.
SHOWN = ["shmtree", "multiprocessing.Queue", "torch.multiprocessing", "faster-fifo", "pyzmq", "iceoryx2"]


class Unsupported(Exception):
    """The competitor does not support this workload. The message gives the reason and becomes its row."""


class Base:
    """Interface of an adapter: construction, put, get and close are required, the rest is optional."""

    requires: ClassVar[tuple[str, ...]] = ()  # distributions to report with their versions
    is_shared: ClassVar[bool] = False  # may have several producers and consumers
    is_deep: ClassVar[bool] = True  # can hold thousands of messages without a receiver
    is_bounded: ClassVar[bool] = False  # put blocks while it contains `capacity` messages
    lends_bytes: ClassVar[bool] = False  # bytes arrive as a memoryview
    shares_tensors: ClassVar[bool] = False  # the receiver shares the memory of a tensor, so put a copy
    copies: ClassVar[float] = 4  # copies of a large payload in memory at once, including the producer's

    servers: ClassVar[list[int]] = []  # processes that all channels share

    @classmethod
    def start(cls) -> None:
        """Starts a server, if one is needed. Called once, before the first channel. The benchmark ends it."""

    @classmethod
    def sweep(cls) -> None:
        """Removes remains of channels. Called after channels, some of which may have been killed."""

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        """Creates a channel for `capacity` messages of about `nbytes`, of type `kind`."""
        raise NotImplementedError

    @classmethod
    def copies_of(cls, kind: type) -> float:
        """Returns `copies` for messages of type `kind`."""
        return cls.copies

    def sender(self) -> Callable[[Any], Any]:
        raise NotImplementedError

    def receiver(self) -> Callable[[], Any]:
        raise NotImplementedError

    def loan(self) -> Callable[[tuple[int, ...]], Any] | None:
        """Returns a function that lends float32 arrays, which put does not copy, or None. Call after `sender()`."""
        return None

    def forward(self, put: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a put for messages that were received from another channel of the same kind."""
        return put

    def close(self) -> None:
        """Closes the channel. Called in the process that created it, after its users have ended."""


_ROOT = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
_PREFIX = f"shmtree-bench-{os.getpid()}"  # pid of the process that creates the channels; its children inherit the name


class InFolder(Base):
    """A competitor whose channels are files: they lie in a folder of their own, in shared memory if there is any."""

    _made = 0

    @classmethod
    def folder(cls) -> Path:
        return _ROOT / f"{_PREFIX}-{cls.__module__}"

    @classmethod
    def sweep(cls) -> None:
        shutil.rmtree(cls.folder(), ignore_errors=True)

    @classmethod
    def new_name(cls) -> str:
        """Creates the folder. Returns a name that no other channel has."""
        cls._made += 1
        cls.folder().mkdir(exist_ok=True)
        return f"channel-{cls._made}"


def load(name: str) -> type[Base]:
    """Returns the class of a competitor. Raises ImportError if it is not installed."""
    competitor: type[Base] = importlib.import_module(f"bench.competitors.{NAMES[name]}").Competitor
    return competitor
