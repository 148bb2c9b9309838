"""Shmtree's queues in place of the standard ones, with counters."""

from __future__ import annotations

from multiprocessing import queues as _module
from typing import TYPE_CHECKING, Any

from .. import _core
from .._ipc import queue as _queue
from ..errors import Error
from . import counters, notes
from .counting import counting_get, counting_put
from .sites import here


class _Counting(_queue.BaseQueue[Any]):
    """Common base of the three classes of queues. They claim to be instances of the standard classes."""

    _standard: type
    _key = ""
    _row = 0

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> Any:
            return self._standard

    def _count_from(self, kind: str) -> None:
        self._key = here(kind).key
        self._row = counters.row_of(self._key)
        counters.cells[self._row + counters.OBJECTS] += 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (type(self), self._key, self.__getstate__())

    put = counting_put(_core.QueueBase.put)
    get = counting_get(_core.QueueBase.get)


def _loaded(cls: type[_Counting], key: str, state: Any) -> _Counting:
    self = cls.__new__(cls)
    self._key, self._row = key, counters.row_of(key)
    self.__setstate__(state)
    return self


class Queue(_Counting, _queue.Queue[Any]):
    """A `multiprocessing.Queue` that counts."""

    _standard = _module.Queue


class JoinableQueue(_Counting, _queue.JoinableQueue[Any]):
    """A `multiprocessing.JoinableQueue` that counts."""

    _standard = _module.JoinableQueue


class SimpleQueue(_Counting, _queue.SimpleQueue[Any]):
    """A `multiprocessing.SimpleQueue` that counts."""

    _standard = _module.SimpleQueue


def make_queue(standard: Any, context: object, maxsize: int | None = None) -> Any:
    """Returns a queue for a method of a context. Returns the standard queue of the method if shmtree cannot make one
    here."""
    arguments = () if maxsize is None else (maxsize,)
    kind = standard.__name__
    try:
        queue_object = {"Queue": Queue, "JoinableQueue": JoinableQueue, "SimpleQueue": SimpleQueue}[kind](*arguments)
    except (Error, OSError, MemoryError) as error:
        notes.add(kind, f"shmtree cannot make it: {error}")
        return standard(context, *arguments)
    queue_object._count_from(kind)
    return queue_object
