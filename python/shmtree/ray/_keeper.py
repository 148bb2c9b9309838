"""State of a node that outlives its gateway: channels, shards, and records about them."""

from __future__ import annotations

import pickle
import random
from typing import Any, Literal, NamedTuple

from ._handles import Held, Table, open_latest

Key = tuple[Any, ...]  # the kind of state, and numbers


class Stored(NamedTuple):
    """State of one object of a node: plain values, and a handle of its memory."""

    record: dict[str, Any]
    handle: bytes = b""
    kind: Literal["channel", "latest", "shard", "record"] = "record"
    ends: str = ""  # of a channel: the ends that the keeper is attached to, "s" and "r"
    tables: tuple[Table, ...] = ()

    def hold(self) -> Any:
        """Returns an object that keeps the memory alive."""
        if self.kind == "channel":
            return Held(self.handle, self.ends, self.tables)
        if self.kind == "latest":
            return open_latest(self.handle, quietly=True)
        return pickle.loads(self.handle) if self.kind == "shard" else None


class Keeper:
    """The keeper of a node, in a process that does nothing else.

    If it is replaced, the gateway sends it everything again.
    """

    def __init__(self) -> None:
        self.number = random.getrandbits(62)
        self._kept: dict[Key, tuple[Stored, Any]] = {}

    def store(self, key: Key, kept: Stored | None) -> None:
        """Keeps this state under the key; None removes it."""
        known, held = self._kept.pop(key, (None, None))
        if kept is None:
            if isinstance(held, Held):
                held.attach("")
            return
        if known is None or known.handle != kept.handle:
            held = kept.hold()
        elif isinstance(held, Held):
            held.attach(kept.ends)
        self._kept[key] = (kept, held)

    def all(self) -> tuple[int, dict[Key, Stored]]:
        return self.number, {key: kept for key, (kept, _) in self._kept.items()}
