"""Statistics of a buffer."""

from __future__ import annotations

import time
from typing import TypedDict, cast

from .. import _core
from ._spec import Spec


class _Waiting(TypedDict):
    add: list[int]
    sample: list[int]


class _Counts(TypedDict):
    rows: int
    capacity: int
    chunk: int
    row_bytes: int
    max_bytes: int
    chunks: int
    chunks_opened: int
    added: int
    samples: dict[str, int]
    samples_per_insert: float
    waiting: _Waiting
    added_per_s: float
    sampled_per_s: float
    drawn: int
    age_mean: float
    age_max: float
    version_lag_mean: float
    version_lag_max: float


class ReplayStats(_Counts, total=False):
    """Result of `ReplayBuffer.stats`, which describes the keys. `inserted` and `sampled` exist with a rate limit."""

    inserted: int
    sampled: int


class Stats:
    """Counts of a buffer, and their rates since the previous call on this object."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def of(self, core: _core.Replay, spec: Spec) -> ReplayStats:
        """Implements `ReplayBuffer.stats`."""
        found = core.stats()
        found["samples"] = dict(zip(spec.samplers, found["samples"], strict=True))
        found["row_bytes"], found["chunk"] = core.row_bytes, core.chunk
        sampled = sum(found["samples"].values())
        found["samples_per_insert"] = sampled / found["added"] if found["added"] else 0.0
        now = (time.monotonic(), found["added"], sampled)
        last, self._last = self._last or now, now
        seconds = now[0] - last[0]
        for key, before, after in zip(("added_per_s", "sampled_per_s"), last[1:], now[1:], strict=True):
            found[key] = (after - before) / seconds if seconds > 0 else 0.0
        return cast("ReplayStats", found)
