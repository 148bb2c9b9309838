"""Sampling from a buffer, and its arguments."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._ipc.arguments import one_of
from . import _endless_waits, _hindsight, _memory, _rows
from ._batch import Batch, SequenceBatch
from ._numbers import not_negative, positive
from ._spec import Spec

# Limits of one call. For a batch, the core checks the machine's memory as well.
_MAX_SAMPLED, _MAX_THREADS, _MAX_STRIDE = 1 << 31, 1024, 1 << 32


def sample(
    core: _core.Replay,
    spec: Spec,
    data: _rows.Rows,
    n: int,
    sampler: str | None,
    replace: bool,
    out: Any,
    threads: int,
    beta: float | None,
    weights: str,
    timeout: float | None,
    hindsight: _hindsight.Hindsight | None,
    owner: _endless_waits.Owner | None,
) -> Batch:
    """Implements `ReplayBuffer.sample`."""
    count = n if type(n) is int and 0 < n <= _MAX_SAMPLED else positive("n", n, _MAX_SAMPLED)
    arrays = None if out is None else _memory.arrays_for(data, (count,), out, core.arena)
    of_buffer = weights != "batch" and one_of("weights", weights, "batch", "buffer") == "buffer"
    exponent = None if beta is None else not_negative("beta", beta)
    terms = (count, spec.table(sampler), not replace, _threads(threads))
    goals = None if hindsight is None else _hindsight.checked(hindsight)._core()

    def draw(seconds: float | None) -> _core.ReplayBatch:
        return core.sample(*terms, seconds, exponent, of_buffer, arrays, goals)

    drawn = _endless_waits.draw(draw, owner, timeout)
    batch = Batch._of(_data(drawn, data, arrays, out), drawn, spec.has_discount)
    if hindsight is not None:
        _hindsight.set_rewards(hindsight, spec, data.skeleton, batch.data, drawn)
    return batch


def sample_sequences(
    core: _core.Replay,
    spec: Spec,
    data: _rows.Rows,
    n: int,
    length: int,
    stride: int,
    partial: str,
    sampler: str | None,
    replace: bool,
    out: Any,
    threads: int,
    beta: float | None,
    weights: str,
    timeout: float | None,
    owner: _endless_waits.Owner | None,
) -> SequenceBatch:
    """Implements `ReplayBuffer.sample_sequences`."""
    count, rows = positive("n", n, _MAX_SAMPLED), positive("length", length, _MAX_SAMPLED)
    step = positive("stride", stride, _MAX_STRIDE)
    may_be_partial = one_of("partial", partial, "pad", "refuse") == "pad"
    arrays = None if out is None else _memory.arrays_for(data, (count, rows), out, core.arena)
    table = -1 if sampler is None else spec.table(sampler)
    of_buffer = one_of("weights", weights, "batch", "buffer") == "buffer"
    exponent = None if beta is None else not_negative("beta", beta)
    terms = (count, rows, step, may_be_partial, table, not replace, _threads(threads))

    def draw(seconds: float | None) -> _core.ReplayBatch:
        return core.sample_sequences(*terms, seconds, exponent, of_buffer, arrays)

    drawn = _endless_waits.draw(draw, owner, timeout)
    return SequenceBatch._of(_data(drawn, data, arrays, out), drawn, spec.has_discount)


def _threads(threads: int) -> int:
    return 1 if threads == 1 else positive("threads", threads, _MAX_THREADS)


def _data(drawn: _core.ReplayBatch, data: _rows.Rows, arrays: list[Any] | None, out: Any) -> Any:
    if arrays is None:
        return drawn.data()
    return _rows.map_leaves(data.skeleton, arrays) if isinstance(out, str) else out
