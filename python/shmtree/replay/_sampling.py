"""Sampling from a buffer, and its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import _core
from .._ipc.arguments import one_of
from . import _endless_waits, _hindsight, _memory, _rows
from ._batch import Batch, SequenceBatch
from ._numbers import not_negative, positive, whole
from ._rows import map_nest

if TYPE_CHECKING:
    from ._buffer import ReplayBuffer

_B = TypeVar("_B", bound=Batch)

# Limits of one call. For a batch, the core checks the machine's memory as well.
_MAX_SAMPLED, _MAX_THREADS, _MAX_STRIDE = 1 << 31, 1024, 1 << 32

_PARTIAL = ("pad", "refuse", "whole")  # in the order of the core's numbers: src/replay/sampling/sequence_sampler.h

#: Arguments that `ReplayBuffer.sample` and `sample_sequences` have in common: replace, out, threads, beta, weights and
#: timeout.
Terms = tuple[bool, Any, int, float | None, str, float | None]


def sample(
    buffer: ReplayBuffer, n: int, sampler: str | None, hindsight: _hindsight.Hindsight | None, terms: Terms
) -> Batch:
    """Implements `ReplayBuffer.sample`."""
    count = n if type(n) is int and 0 < n <= _MAX_SAMPLED else positive("n", n, _MAX_SAMPLED)
    goals = None if hindsight is None else _hindsight.checked(hindsight)._core()
    batch = _draw(Batch, buffer, (count,), buffer._spec.table(sampler), terms, goals, None)
    if hindsight is not None:
        _hindsight.set_rewards(hindsight, buffer._spec, buffer._data.skeleton, batch.data, batch._sampled)
    return batch


def sample_sequences(
    buffer: ReplayBuffer,
    n: int,
    length: int,
    stride: int,
    partial: str,
    burn_in: int,
    sampler: str | None,
    terms: Terms,
) -> SequenceBatch:
    """Implements `ReplayBuffer.sample_sequences` and, with the partial "whole", `ReplayBuffer.sample_episodes`."""
    before = whole("burn_in", burn_in, 0, _MAX_SAMPLED)
    rows = before + positive("length", length, _MAX_SAMPLED)
    sequence = rows, positive("stride", stride, _MAX_STRIDE), _PARTIAL.index(partial), before
    table = -1 if sampler is None else buffer._spec.table(sampler)
    return _draw(SequenceBatch, buffer, (positive("n", n, _MAX_SAMPLED), rows), table, terms, None, sequence)


def set_stored_state(batch: SequenceBatch, keys: str | Iterable[str]) -> None:
    """Sets `SequenceBatch.stored_state`."""
    first = np.arange(len(batch)), batch.mask.argmax(axis=1)
    state = {}
    for key in (keys,) if isinstance(keys, str) else keys:
        if not isinstance(batch.data, dict) or key not in batch.data:
            there = list(batch.data) if isinstance(batch.data, dict) else "no keys"
            raise ValueError(f"stored_state has {key!r}, but rows of the buffer have {there}")
        state[key] = map_nest("", batch.data[key], lambda _, leaf: leaf[first])
    batch._stored_state = state


def _draw(
    cls: type[_B], buffer: ReplayBuffer, front: tuple[int, ...], table: int, terms: Terms, goals: Any, sequence: Any
) -> _B:
    replace, out, threads, beta, weights, timeout = terms
    core, data = buffer._replay, buffer._data
    arrays = None if out is None else _memory.arrays_for(data, front, out, core.arena)
    of_buffer = weights != "batch" and one_of("weights", weights, "batch", "buffer") == "buffer"
    exponent = None if beta is None else not_negative("beta", beta)
    most = 1 if threads == 1 else positive("threads", threads, _MAX_THREADS)

    def draw(seconds: float | None) -> _core.ReplayBatch:
        return core.sample(front[0], table, not replace, most, seconds, exponent, of_buffer, arrays, goals, sequence)

    drawn = _endless_waits.draw(draw, buffer._owner, timeout)
    if arrays is None:
        out = drawn.data()
    elif isinstance(out, str):
        out = _rows.map_leaves(data.skeleton, arrays)
    return cls._of(out, drawn, buffer._spec.has_discount)
