"""Counters in the standard queues and pipes, for `shmtree run --profile`.

The methods of the standard classes are wrapped in place. The key of a queue is an attribute of its two connections: a
pickle takes it along, and a process without these wrappers ignores it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection as _connections
from multiprocessing import reduction
from time import thread_time_ns
from typing import Any

from .._codec.frames import pack, unpack
from . import counters, originals
from .counters import FEED_NS, HIDDEN, OBJECTS, PICKLE_NS, PUTS, SAMPLES, TRIAL_NS, TRIALS
from .counting import counting_get, counting_poll, counting_put, on_sample
from .sites import here

_KEY = "_shmtree_key"
_IS_PIPE = "_shmtree_is_pipe"
_MAX_TRIAL_BYTES = 64 << 20
_COPY_NS_PER_BYTE = 0.4  # of larger messages, which are not tried


class _Thread(threading.local):
    pickle_ns = 0  #: CPU time of pickles that are not sent yet
    received_row = 0  #: row of the last message that was received
    fed_ns: int | None = None  #: CPU time until the last message, in the thread that sends the messages of a queue


_thread = _Thread()


def _try(row: int, obj: object, size: int) -> None:
    """Encodes and decodes some of the sampled messages as shmtree would: the first, second, fourth, ..."""
    cells = counters.cells
    number = cells[row + PUTS + SAMPLES]
    if number & (number - 1):
        return
    took = round(size * _COPY_NS_PER_BYTE)
    if size <= _MAX_TRIAL_BYTES:
        try:
            unpack(pack(obj, allow_pickle=True), allow_pickle=True)  # warms up
            began = thread_time_ns()
            unpack(pack(obj, allow_pickle=True), allow_pickle=True)
        except Exception:  # the program gets the error from its own call, if there is one
            return
        took = thread_time_ns() - began
    cells[row + TRIAL_NS] += took
    cells[row + TRIALS] += 1


def _tag(connection: Any, key: str, is_pipe: bool = False) -> None:
    vars(connection).update({_KEY: key, _IS_PIPE: is_pipe})


def _reduce_connection(connection: Any) -> Any:
    tags = {name: value for name, value in vars(connection).items() if name in (_KEY, _IS_PIPE)}
    return *_connections.reduce_connection(connection), tags  # type: ignore[attr-defined]


def _row_of(connection: Any) -> int:
    return counters.row_of(vars(connection).get(_KEY, HIDDEN))


def make_pipe(standard: Any, duplex: bool) -> Any:
    made = standard(duplex)
    key = here("Pipe").key
    counters.cells[counters.row_of(key) + OBJECTS] += 1
    for each in made:
        _tag(each, key, True)
    return made


def _tagging(initialize: Any) -> Any:
    """Returns the `__init__` of a queue, which makes a row for the place that called it."""

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        kinds = (originals.JoinableQueue, originals.Queue, originals.SimpleQueue)
        key = here(next(kind.__name__ for kind in kinds if isinstance(self, kind))).key
        for each in (self._reader, self._writer):
            _tag(each, key)
        counters.cells[counters.row_of(key) + OBJECTS] += 1

    return __init__


def _of_pipes(wrapped: Any) -> Any:
    """Returns a method of a connection that counts, except for the connections inside a queue."""
    standard = wrapped.__wrapped__

    @functools.wraps(standard)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return (wrapped if vars(self).get(_IS_PIPE) else standard)(self, *arguments, **options)

    return method


def _timing_dumps(standard: Any) -> Any:
    def dumps(cls: Any, obj: Any, protocol: int | None = None) -> Any:
        began = thread_time_ns()
        data = standard(cls, obj, protocol)
        _thread.pickle_ns += thread_time_ns() - began
        return data

    return classmethod(dumps)


def _timing_loads(standard: Any) -> Any:
    def loads(*arguments: Any, **options: Any) -> Any:
        began = thread_time_ns()
        obj = standard(*arguments, **options)
        counters.cells[_thread.received_row + PICKLE_NS] += thread_time_ns() - began
        return obj

    return staticmethod(loads)


def _sending(standard: Any) -> Any:
    """Returns the method of a connection that writes a message: its pickle, and the thread of its queue, take time."""

    def _send_bytes(self: Any, data: Any) -> None:
        standard(self, data)
        row, cells = _row_of(self), counters.cells
        cells[row + PICKLE_NS] += _thread.pickle_ns
        _thread.pickle_ns = 0
        if _thread.fed_ns is not None:
            now = thread_time_ns()
            cells[row + FEED_NS] += now - _thread.fed_ns
            _thread.fed_ns = now

    return _send_bytes


def _receiving(standard: Any) -> Any:
    def _recv_bytes(self: Any, *arguments: Any) -> Any:
        _thread.received_row = _row_of(self)
        return standard(self, *arguments)

    return _recv_bytes


def _feeding(standard: Callable[..., Any]) -> Any:
    """Returns the function that runs in the thread of a queue."""

    def _feed(*arguments: Any) -> None:
        _thread.fed_ns = thread_time_ns()
        standard(*arguments)

    return staticmethod(_feed)


def _wrap() -> None:
    queue, joinable, simple = originals.Queue, originals.JoinableQueue, originals.SimpleQueue
    connection, pickler = _connections.Connection, reduction.ForkingPickler
    of_queue: Any = property(lambda self: _row_of(self._writer))
    of_connection: Any = property(_row_of)
    changes: list[tuple[Any, str, Any]] = [
        (queue, "_row", of_queue),
        (simple, "_row", of_queue),
        (connection, "_row", of_connection),
        (pickler, "dumps", _timing_dumps(vars(pickler)["dumps"].__func__)),
        (pickler, "loads", _timing_loads(pickler.loads)),
        (queue, "_feed", _feeding(queue._feed)),  # type: ignore[attr-defined]
        (connection, "_send_bytes", _sending(connection._send_bytes)),  # type: ignore[attr-defined]
        (connection, "_recv_bytes", _receiving(connection._recv_bytes)),  # type: ignore[attr-defined]
        (queue, "__init__", _tagging(queue.__init__)),
        (simple, "__init__", _tagging(simple.__init__)),
        *((cls, "put", counting_put(cls.put)) for cls in (queue, joinable, simple)),
        *((cls, "get", counting_get(cls.get)) for cls in (queue, simple)),
        (connection, "send", counting_put(connection.send)),
        (connection, "recv", counting_get(connection.recv)),
        (connection, "send_bytes", _of_pipes(counting_put(connection.send_bytes))),
        (connection, "recv_bytes", _of_pipes(counting_get(connection.recv_bytes))),
        (connection, "poll", _of_pipes(counting_poll(connection.poll))),
    ]
    for cls, name, value in changes:
        setattr(cls, name, value)
    reduction.register(connection, _reduce_connection)
    on_sample.append(_try)


if getattr(sys, "_shmtree_run", {"profile": False})["profile"]:
    _wrap()
