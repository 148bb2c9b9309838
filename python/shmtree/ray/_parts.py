"""Samples from one shard of a replay buffer, in a process that has its memory."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..replay import Prioritized, Sampler, Uniform, _rows
from ..replay._buffer import ReplayBuffer
from ..replay._memory import Size
from ..replay._spec import Spec

Array = np.ndarray[Any, Any]

#: Data of each row besides its columns.
KNOWN = ("index", "probability", "priority", "version", "writer", "step")


class Plan(NamedTuple):
    """Arguments with which a shard is made."""

    spec: Spec
    size: Size
    seed: int | None

    def make(self) -> ReplayBuffer:
        buffer = ReplayBuffer.__new__(ReplayBuffer)
        buffer._make(self.spec, self.size, None, None, self.seed)
        return buffer


class Weights(NamedTuple):
    """Weights of a shard: number of rows that can be sampled, their total weight, and the smallest one if requested.

    It also has the largest priority that was set in the shard, which new rows get. A single buffer would give new rows
    the largest priority of all shards. Therefore each caller that weighs or samples sends the largest priority that it
    knows, and the shard adopts it.
    """

    rows: int
    total: float
    least: float
    largest: float


class Terms(NamedTuple):
    """Arguments of a sample, except the number of rows."""

    sampler: str | None
    replace: bool
    length: int = 0  # of sequences; 0: rows
    stride: int = 1
    partial: str = "pad"

    def table(self, spec: Spec) -> int:
        """Returns the number of the sampler, or -1 for uniform sampling."""
        return -1 if self.length and self.sampler is None else spec.table(self.sampler)


class Part(NamedTuple):
    """The rows that one shard returned."""

    weights: Weights  # at the time of the sample
    known: dict[str, Array]
    leaves: list[Array]
    newest: int


def check_samplers(samplers: Mapping[str, Sampler]) -> None:
    """Raises ValueError for a sampler that needs to know all rows at once."""
    for name, each in samplers.items():
        if not isinstance(each, Uniform | Prioritized) or each.max_times is not None:
            allowed = "over several nodes it must be Uniform() or Prioritized(), without max_times"
            raise ValueError(f"sampler {name!r} is {each!r}; {allowed}")


def weigh(buffer: ReplayBuffer, table: int, with_least: bool, largest: float) -> Weights:
    rows = len(buffer)
    if table < 0:
        return Weights(rows, float(rows), 1.0, 0.0)
    core = buffer._replay
    core.raise_max_priority(table, largest)
    return Weights(rows, *core.weigh(table, with_least), core.max_priority(table))


def draw(buffer: ReplayBuffer, n: int, terms: Terms, largest: float) -> Part | None:
    """Samples from the shard. Returns None if it has no such rows, or too few."""
    options: dict[str, Any] = {"sampler": terms.sampler, "replace": terms.replace, "timeout": 0.0}
    if not terms.replace and len(buffer) < n:
        return None
    try:
        if terms.length:
            more: dict[str, Any] = {"stride": terms.stride, "partial": terms.partial}
            batch: Any = buffer.sample_sequences(n, terms.length, **more, **options)
        else:
            batch = buffer.sample(n, **options)
    except queue.Empty:
        return None
    spec: Spec = buffer._spec
    known = {name: getattr(batch, name) for name in KNOWN}
    if spec.has_discount:
        known["discount"] = batch.discount
    if terms.length:
        known["mask"] = batch.mask
    leaves = _rows.flatten("data", buffer._data.skeleton, batch.data)
    return Part(weigh(buffer, terms.table(spec), False, largest), known, leaves, int(batch._sampled.newest))
