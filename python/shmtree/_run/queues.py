"""Shmtree's queues in place of the standard ones, with counters."""

from __future__ import annotations

import sys
from multiprocessing import queues as _module
from typing import Any

from .. import _core
from .._ipc import queue as _queue
from . import counters, originals
from .counting import counting_get, counting_put
from .sites import here
from .substitute import Substitute


class _Counting(_queue.BaseQueue[Any]):
    """What the three classes have in common."""

    _key = ""
    _row = 0

    def _count_from(self, kind: str) -> None:
        self._key = here(kind).key
        self._row = counters.row_of(self._key)
        counters.cells[self._row + counters.OBJECTS] += 1

    def __getstate__(self) -> Any:
        return self._key, super().__getstate__()

    def __setstate__(self, state: Any) -> None:
        self._key, inner = state
        self._row = counters.row_of(self._key)
        super().__setstate__(inner)

    put = counting_put(_core.QueueBase.put)
    get = counting_get(_core.QueueBase.get)


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


if not getattr(sys, "_shmtree_run", {"profile": True})["profile"]:
    for _each in (Queue, JoinableQueue, SimpleQueue):
        setattr(_module, _each.__name__, _each)
    originals.claim()
