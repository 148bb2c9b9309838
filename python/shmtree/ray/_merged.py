"""Samples from several shards as if they were one buffer: chooses the shards, and merges their parts into a batch.

The probability of a row is (weight of its shard / weight of all shards) x (its weight / weight of its shard). If the
shard has changed since it was weighed, that is still the probability of the draw, and the weights of the batch correct
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..replay import _rows
from ..replay._batch import Batch, SequenceBatch
from ..replay._spec import Spec
from ._parts import Array, Part, Weights

_INDEX_BITS = 48
_INDEX_MASK = (1 << _INDEX_BITS) - 1

MAX_SHARDS = (1 << 63 - _INDEX_BITS) - 1


def global_index(shard: int, index: Any) -> Any:
    """Returns the index of a shard's row in the whole buffer: the shard's number is in the high bits."""
    return index | shard << _INDEX_BITS


def shards_of(index: Array) -> Array:
    shards: Array = index >> index.dtype.type(_INDEX_BITS)
    return shards


def local_index(index: Array) -> Array:
    local: Array = index & index.dtype.type(_INDEX_MASK)
    return local


def choose(random: np.random.Generator, weights: Mapping[int, Weights], n: int, replace: bool) -> Array:
    """Returns the shard of each row of a batch.

    Without replacement, a shard yields at most its number of rows. For a sampler with priorities, the weights of the
    shards stay the same while rows are drawn.
    """
    shards = np.fromiter(weights, np.int64)
    totals = np.array([each.total for each in weights.values()])
    if replace:
        return random.choice(shards, n, p=totals / totals.sum())
    rows = np.array([each.rows for each in weights.values()], np.int64)
    rows[totals <= 0] = 0
    if np.array_equal(rows, totals):  # all rows are equally likely
        parts = random.multivariate_hypergeometric(rows, n)
    else:
        parts = np.zeros(len(rows), np.int64)
        while (left := n - parts.sum()) > 0:
            open_ = np.where(parts < rows, totals, 0)
            parts = np.minimum(parts + random.multinomial(left, open_ / open_.sum()), rows)
    return random.permutation(np.repeat(shards, parts))


class MergedSample:
    """The data of sampled rows that `Batch` needs."""

    def __init__(self, known: dict[str, Array], newest: Array) -> None:
        self._known = known
        self.newest = newest

    def __getattr__(self, name: str) -> Any:
        try:
            array = self.__dict__["_known"][name]
        except KeyError:
            raise AttributeError(name) from None
        return lambda: array


def merge(
    spec: Spec, data: _rows.Rows, shards: Array, parts: Mapping[int, Part], weights: Mapping[int, Weights], **how: Any
) -> Batch:
    """Merges the parts into a batch: row i is the next row of shard `shards[i]`. For `how`, see `_importance`."""
    places = {shard: np.flatnonzero(shards == shard) for shard in parts}
    total = sum(each.total for each in weights.values())
    for shard, part in parts.items():
        mask = part.known.get("mask", True)
        part.known["index"] = np.where(mask, global_index(shard, part.known["index"]), 0)
        part.known["newest"] = np.where(mask, global_index(shard, part.newest), 0) + np.zeros_like(part.known["index"])
        part.known["probability"] = part.known["probability"] * (weights[shard].total / total)
    first = next(iter(parts.values()))
    known = {
        name: _joined(len(shards), places, {s: part.known[name] for s, part in parts.items()}) for name in first.known
    }
    leaves = [
        _joined(len(shards), places, {s: part.leaves[leaf] for s, part in parts.items()})
        for leaf in range(len(first.leaves))
    ]
    known["weight"] = _importance(known["probability"], weights, total, **how)
    drawn: Any = MergedSample(known, known.pop("newest"))
    cls = SequenceBatch if "mask" in known else Batch
    return cls._of(_rows.map_leaves(data.skeleton, leaves), drawn, spec.has_discount)


def _joined(n: int, places: Mapping[int, Array], parts: Mapping[int, Array]) -> Array:
    first = next(iter(parts.values()))
    joined = np.empty((n, *first.shape[1:]), first.dtype)
    for shard, part in parts.items():
        joined[places[shard]] = part
    return joined


def _importance(
    probability: Array, weights: Mapping[int, Weights], total: float, beta: float, of_buffer: bool
) -> Array:
    """Returns (least / probability)^beta. `least` is the minimum probability in the batch, or of all rows."""
    least = min(each.least for each in weights.values()) / total if of_buffer else probability.min()
    importance: Array = np.minimum(least / probability, 1.0) ** beta
    return importance.astype(np.float32)
