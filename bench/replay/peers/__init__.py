"""One small file per replay buffer, each with a class `Peer`; `NAMES` has them in the order of the tables.

What a peer has not raises Unsupported, with the reason. `own_row` and `own_rows` turn rows into what the peer likes
best, and are not timed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.replay.rows import Columns, Rows

# Module of this package by the name that the tables show.
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
BOUNDS = ("NumPy", "memcpy")  # no buffers: what a hand-made one, and the memory, can do


class Unsupported(Exception):
    """The peer cannot do this workload; the message says why and becomes its cell."""


@dataclass(frozen=True)
class Wanted:
    """What the buffer is to be able to do."""

    capacity: int
    columns: Columns
    prioritized: bool = False
    shared: bool = False  # written by other processes
    streams: int = 1  # written in turns
    stack: int = 0  # frames of `obs` that a sample has
    length: int = 0  # of sequences
    threads: int = 1


class Base:
    requires: ClassVar[str]  # distribution whose version is reported
    context: ClassVar[str] = "fork"  # how its writers are started

    def __init__(self, wanted: Wanted) -> None:
        raise NotImplementedError

    def own_row(self, row: Rows) -> Any:
        return row

    def own_rows(self, rows: Rows) -> Any:
        return rows

    def add(self, row: Any) -> None:
        raise Unsupported("no rows one by one")

    def extend(self, rows: Any, stream: int = 0) -> None:
        """Of one stream."""
        raise Unsupported("no rows in batches")

    def extend_streams(self, rows: list[Rows]) -> None:
        """As many rows of each stream."""
        for stream, each in enumerate(rows):
            self.extend(self.own_rows(each), stream)

    def sample(self, count: int) -> Any:
        raise Unsupported("cannot be drawn from")

    def sample_prioritized(self, count: int) -> Any:
        """What `update` wants to have."""
        raise Unsupported("no priorities")

    def update(self, drawn: Any, priorities: Any) -> None:
        raise Unsupported("no priorities")

    def sequences(self, count: int, length: int) -> Any:
        raise Unsupported("no sequences")

    def writer(self) -> Any:
        """What a writing process gets, and calls `add` of."""
        raise Unsupported("one process only")

    def save(self, path: Path) -> None:
        raise Unsupported("is not saved")

    def load(self, path: Path) -> None:
        raise Unsupported("is not loaded")

    def close(self) -> None:
        pass


def load(name: str) -> type[Base]:
    """Raises ImportError where the peer is not installed."""
    peer: type[Base] = importlib.import_module(f"bench.replay.peers.{NAMES[name]}").Peer
    return peer
