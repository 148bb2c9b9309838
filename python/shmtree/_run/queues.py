"""Shmtree's queues in place of the standard ones, with counters.

Each call adds its time to the counters of its row. Some calls are sampled: they also measure CPU time and the size of
the message, which takes longer. `results` estimates the totals from the samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import queues as _module
from time import perf_counter_ns, thread_time_ns
from typing import Any

from .. import _core
from .._ipc import queue as _queue
from . import counters, originals
from .counters import (
    GET_CPU_NS,
    GET_NS,
    GET_SAMPLES,
    GETS,
    OBJECTS,
    POLL_NS,
    PUT_BYTES,
    PUT_CPU_NS,
    PUT_NS,
    PUT_SAMPLES,
    SHARED_TENSORS,
)
from .sites import here
from .sizes import size_of
from .substitute import Substitute

ALL_SAMPLED = 16
PERIOD = 31  # a prime, so that it is no multiple of a period of the program

_put = _core.QueueBase.put
_get = _core.QueueBase.get


def is_sampled(count: int) -> bool:
    """Returns True for the first calls of a row, and then for one of 31."""
    return count % PERIOD == 0 or count < ALL_SAMPLED


class _Counting(_queue.BaseQueue[Any]):
    """What the three classes have in common."""

    _key = ""
    _row = 0

    def _count_from(self, kind: str) -> None:
        self._key = here(kind).key
        self._row = counters.row_of(self._key)
        counters.cells[self._row + OBJECTS] += 1

    def __getstate__(self) -> Any:
        return self._key, super().__getstate__()

    def __setstate__(self, state: Any) -> None:
        self._key, inner = state
        self._row = counters.row_of(self._key)
        super().__setstate__(inner)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:  # type: ignore[override]
        row = self._row
        cells = counters.cells
        if (count := cells[row]) % PERIOD == 0 or count < ALL_SAMPLED:
            sampled_put(row, obj, lambda: _put(self, obj, block, timeout))
            return
        began = perf_counter_ns()
        try:
            _put(self, obj, block, timeout)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # type: ignore[override]
        row = self._row
        cells = counters.cells
        if (count := cells[row + GETS]) % PERIOD == 0 or count < ALL_SAMPLED:
            return sampled_get(row, lambda: _get(self, block, timeout))
        began = perf_counter_ns()
        try:
            obj = _get(self, block, timeout)
            cells[row + GETS] += 1
            return obj
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began


class Queue(_Counting, _queue.Queue[Any], metaclass=Substitute, standard=originals.Queue):
    """A `multiprocessing.Queue` that counts."""

    def __init__(self, maxsize: int = 0, *, ctx: object = None) -> None:
        super().__init__(maxsize)
        self._count_from("Queue")


class JoinableQueue(Queue, _queue.JoinableQueue[Any], standard=originals.JoinableQueue):
    """A `multiprocessing.JoinableQueue` that counts."""

    def __init__(self, maxsize: int = 0, *, ctx: object = None) -> None:
        _queue.JoinableQueue.__init__(self, maxsize)
        self._count_from("JoinableQueue")


class SimpleQueue(_Counting, _queue.SimpleQueue[Any], metaclass=Substitute, standard=originals.SimpleQueue):
    """A `multiprocessing.SimpleQueue` that counts."""

    def __init__(self, *, ctx: object = None) -> None:
        super().__init__()
        self._count_from("SimpleQueue")


def sampled_put(row: int, obj: object, put: Callable[[], Any]) -> None:
    """Calls `put`, which sends `obj`. Measures its CPU time, and the size of the message."""
    cells = counters.cells
    cpu = thread_time_ns()
    began = perf_counter_ns()
    try:
        put()
        cells[row] += 1
    finally:
        wall = perf_counter_ns() - began
        cells[row + PUT_NS] += wall
    cells[row + PUT_CPU_NS] += min(thread_time_ns() - cpu, wall)
    size, is_shared = size_of(obj)
    cells[row + PUT_BYTES] += size
    cells[row + SHARED_TENSORS] += is_shared
    cells[row + PUT_SAMPLES] += 1


def sampled_get(row: int, get: Callable[[], Any]) -> Any:
    """Calls `get`, which receives an object, and measures its CPU time."""
    cells = counters.cells
    cpu = thread_time_ns()
    began = perf_counter_ns()
    try:
        obj = get()
        cells[row + GETS] += 1
    finally:
        wall = perf_counter_ns() - began
        cells[row + GET_NS] += wall
    cells[row + GET_CPU_NS] += min(thread_time_ns() - cpu, wall)
    cells[row + GET_SAMPLES] += 1
    return obj


def counted_poll(row: int, timeout: float | None, poll: Callable[[], bool]) -> bool:
    """Calls `poll`, and adds its time to the row if it may wait."""
    if timeout is not None and timeout <= 0:
        return poll()
    began = perf_counter_ns()
    try:
        return poll()
    finally:
        counters.cells[row + POLL_NS] += perf_counter_ns() - began


if not getattr(sys, "_shmtree_run", {"profile": True})["profile"]:
    for _each in (Queue, JoinableQueue, SimpleQueue):
        setattr(_module, _each.__name__, _each)
    originals.claim()
