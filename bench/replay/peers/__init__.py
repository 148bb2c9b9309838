"""Has one small file per replay buffer, each with a class `Peer`. `NAMES` lists them in the order of the tables.

A call that a peer does not support raises Unsupported, with the reason. `own_row` and `own_rows` convert rows to the
peer's preferred form, and are not timed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.replay.rows import Columns, Rows

# Modules of this package, by the name in the tables.
NAMES: dict[str, str] = {
    "shmtree": "shmtree_buffer",
    "cpprb": "cpprb_buffer",
    "TorchRL": "torchrl_buffer",
    "Stable-Baselines3": "sb3_buffer",
    "Reverb": "reverb_server",
    "NumPy": "numpy_take",
    "memcpy": "memcpy",
}
OURS = "shmtree"
BOUNDS = ("NumPy", "memcpy")  # bounds instead of peers: a hand-made buffer, and memory speed


class Unsupported(Exception):
    """The peer does not support this workload. The message gives the reason and becomes its cell."""


@dataclass(frozen=True)
class Wanted:
    """Requirements for the buffer."""

    capacity: int
    columns: Columns
    prioritized: bool = False
    shared: bool = False  # other processes write to it
    streams: int = 1  # number of interleaved streams
    stack: int = 0  # frames of `obs` in a sample
    length: int = 0  # length of sequences
    threads: int = 1


class Base:
    requires: ClassVar[str]  # distribution to report with its version
    context: ClassVar[str] = "fork"  # start method of its writers

    def __init__(self, wanted: Wanted) -> None:
        raise NotImplementedError

    def own_row(self, row: Rows) -> Any:
        return row

    def own_rows(self, rows: Rows) -> Any:
        return rows

    def add(self, row: Any) -> None:
        raise Unsupported("no rows one by one")

    def extend(self, rows: Any, stream: int = 0) -> None:
        """Adds rows of one stream."""
        raise Unsupported("no rows in batches")

    def extend_streams(self, rows: list[Rows]) -> None:
        """Adds the same number of rows to each stream."""
        for stream, each in enumerate(rows):
            self.extend(self.own_rows(each), stream)

    def sample(self, count: int) -> Any:
        raise Unsupported("cannot be sampled")

    def sample_prioritized(self, count: int) -> Any:
        """Returns the argument for `update`."""
        raise Unsupported("no priorities")

    def update(self, drawn: Any, priorities: Any) -> None:
        raise Unsupported("no priorities")

    def sequences(self, count: int, length: int) -> Any:
        raise Unsupported("no sequences")

    def writer(self) -> Any:
        """Returns an object for a writing process, which calls its `add`."""
        raise Unsupported("one process only")

    def save(self, path: Path) -> None:
        raise Unsupported("cannot be saved")

    def load(self, path: Path) -> None:
        raise Unsupported("cannot be loaded")

    def close(self) -> None:
        pass


def load(name: str) -> type[Base]:
    """Returns the class of a peer. Raises ImportError if it is not installed."""
    peer: type[Base] = importlib.import_module(f"bench.replay.peers.{NAMES[name]}").Peer
    return peer
