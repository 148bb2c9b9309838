"""State of a node that outlives its gateway: channels, and records about them."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, NamedTuple

from ._handles import Held, Table, open_latest

Key = tuple[Hashable, ...]


class StoredChannel(NamedTuple):
    """State of one channel: plain values, and the object that holds the channel."""

    record: dict[str, Any]
    handle: bytes
    ends: str
    tables: tuple[Table, ...]
    is_latest: bool = False


class Keeper:
    """The keeper of a node, in a process that does nothing else.

    If it is replaced, the gateway sends it everything again.
    """

    def __init__(self) -> None:
        self.number = random.getrandbits(62)
        self._kept: dict[Key, tuple[StoredChannel, Any]] = {}

    def store(self, key: Key, kept: StoredChannel | None) -> None:
        """Keeps this state under the key; None removes it."""
        if kept is None:
            old = self._kept.pop(key, None)
            if old is not None and not old[0].is_latest:
                old[1].hold("")
            return
        known = self._kept.get(key)
        if known is not None and known[0].handle == kept.handle:
            held = known[1]
            if not kept.is_latest:
                held.hold(kept.ends)
        elif kept.is_latest:
            held = open_latest(kept.handle, quietly=True)
        else:
            held = Held(kept.handle, kept.ends, kept.tables)
        self._kept[key] = (kept, held)

    def all(self) -> tuple[int, dict[Key, StoredChannel]]:
        return self.number, {key: kept for key, (kept, _) in self._kept.items()}
