"""Counters in the standard queues and pipes, for `shmtree run --profile`.

The methods of the standard classes are wrapped in place. The key of a queue is an attribute of its two connections: a
pickle takes it along, and a process without these wrappers ignores it.
"""

from __future__ import annotations

import functools
import sys
import threading
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
_PIPES = ("Pipe\t", "Pool pipe\t")  # beginnings of keys of connections that are not inside a queue
_MAX_TRIAL_BYTES = 64 << 20
_COPY_NS_PER_BYTE = 0.4  # of larger messages, which are not tried

_Connection: Any = _connections.Connection
_Pickler: Any = reduction.ForkingPickler
_Queue: Any = originals.Queue
_reduce: Any = vars(_connections)["reduce_connection"]
_dumps, _loads = vars(_Pickler)["dumps"].__func__, _Pickler.loads
_send_bytes, _recv_bytes, _feed = _Connection._send_bytes, _Connection._recv_bytes, _Queue._feed


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


def _tag(key: str, *connections: Any) -> None:
    counters.cells[counters.row_of(key) + OBJECTS] += 1
    for each in connections:
        vars(each)[_KEY] = key


def _key_of(connection: Any) -> str:
    key: str = vars(connection).get(_KEY, HIDDEN)
    return key


def _row_of(connection: Any) -> int:
    return counters.row_of(_key_of(connection))


def _tagged_reduce(connection: Any) -> Any:
    return *_reduce(connection), {_KEY: _key_of(connection)}


def make_pipe(standard: Any, duplex: bool) -> Any:
    made = standard(duplex)
    _tag(here("Pipe").key, *made)
    return made


def _tagging(initialize: Any) -> Any:
    """Returns the `__init__` of a queue, which makes a row for the place that called it."""

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        kinds = (originals.JoinableQueue, _Queue, originals.SimpleQueue)
        kind = next(each.__name__ for each in kinds if isinstance(self, each))
        _tag(here(kind).key, self._reader, self._writer)

    return __init__


def _of_pipes(counted: Any) -> Any:
    """Returns a method of a connection that counts, except for the connections inside a queue."""
    standard = counted.__wrapped__

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return (counted if _key_of(self).startswith(_PIPES) else standard)(self, *arguments, **options)

    return functools.wraps(standard)(method)


def _timed_dumps(cls: Any, obj: Any, protocol: int | None = None) -> Any:
    began = thread_time_ns()
    data = _dumps(cls, obj, protocol)
    _thread.pickle_ns += thread_time_ns() - began
    return data


def _timed_loads(*arguments: Any, **options: Any) -> Any:
    began = thread_time_ns()
    obj = _loads(*arguments, **options)
    counters.cells[_thread.received_row + PICKLE_NS] += thread_time_ns() - began
    return obj


def _timed_send_bytes(self: Any, data: Any) -> None:
    """Writes a message. Its pickle, and the thread of its queue, have taken time until now."""
    _send_bytes(self, data)
    row, cells = _row_of(self), counters.cells
    cells[row + PICKLE_NS] += _thread.pickle_ns
    _thread.pickle_ns = 0
    if _thread.fed_ns is not None:
        began, _thread.fed_ns = _thread.fed_ns, thread_time_ns()
        cells[row + FEED_NS] += _thread.fed_ns - began


def _timed_recv_bytes(self: Any, *arguments: Any) -> Any:
    _thread.received_row = _row_of(self)
    return _recv_bytes(self, *arguments)


def _timed_feed(*arguments: Any) -> None:
    _thread.fed_ns = thread_time_ns()
    _feed(*arguments)


def _wrap() -> None:
    _Pickler.dumps, _Pickler.loads = classmethod(_timed_dumps), staticmethod(_timed_loads)
    _Connection._send_bytes, _Connection._recv_bytes = _timed_send_bytes, _timed_recv_bytes
    _Connection._row = property(_row_of)
    pairs: Any = (("send", counting_put), ("recv", counting_get), ("poll", counting_poll))
    for name, counting in (*pairs, ("send_bytes", counting_put), ("recv_bytes", counting_get)):
        counted = counting(getattr(_Connection, name))
        setattr(_Connection, name, counted if name in ("send", "recv") else _of_pipes(counted))
    reduction.register(_Connection, _tagged_reduce)
    _Queue._feed = staticmethod(_timed_feed)
    joinable, simple = vars(originals)["JoinableQueue"], vars(originals)["SimpleQueue"]
    for cls in (_Queue, simple):
        cls._row = property(lambda self: _row_of(self._writer))
        cls.__init__, cls.get = _tagging(cls.__init__), counting_get(cls.get)
    for cls in (_Queue, joinable, simple):
        cls.put = counting_put(cls.put)
    on_sample.append(_try)


if getattr(sys, "_shmtree_run", {"profile": False})["profile"]:
    _wrap()
