"""Counters in the standard queues and pipes, for `shmtree run --profile`.

The methods of the standard classes are wrapped in place. The key of a queue is an attribute of its two connections.
Their pickles include the key, and a process without these wrappers ignores it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from multiprocessing import connection as _connections
from multiprocessing import queues as _queues
from multiprocessing import reduction
from time import thread_time_ns
from typing import Any

from .._ipc.pairs import create_pair
from . import counters
from .counters import CHUNK, FEED_NS, HIDDEN, OBJECTS, OURS_NS, PICKLE_NS, PUTS, SAMPLES, STANDARD_NS, TRIALS
from .counting import counting_get, counting_poll, counting_put, on_sample
from .sites import here

_KEY = "_shmtree_key"
_PIPES = ("Pipe\t", "Pool pipe\t")  # beginnings of keys of connections that are not inside a queue
_COPIES = 4  # maximum number of copies of a message in a trial
_MAX_REPEATS = 64  # maximum number of repetitions of a trial with a small message

_Connection: Any = _connections.Connection
_Queue: Any = _queues.Queue
_Pickler: Any = reduction.ForkingPickler
_feed = _Queue._feed
_reduce: Any = vars(_connections)["reduce_connection"]


def _try(row: int, obj: object, size: int) -> None:
    """Sends a sampled message to this thread twice: as the standard library does, and with shmtree.

    Tries only the first, second, fourth, ... sample. The difference in CPU time is what shmtree saves. The difference
    includes neither the wake-up of a receiver, which both need, nor the threads of standard queues.
    """
    cells = counters.cells
    number = cells[row + PUTS + SAMPLES]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if number & (number - 1) or size * _COPIES > free:
        return
    repeats = max(min(CHUNK // max(size, 1), _MAX_REPEATS), 1)
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:  # the program gets errors from its own call
        sender, receiver = create_pair()
        stack.callback(sender.close)
        stack.callback(receiver.close)
        files = [stack.enter_context(open(end, mode, buffering=0)) for end, mode in zip(os.pipe(), ("rb", "wb"))]
        os.set_blocking(files[1].fileno(), False)  # the capacity of a pipe may be less than a chunk
        pickle_ns = _cpu_ns(repeats, lambda: _Pickler.loads(_Pickler.dumps(obj)))
        standard_ns = _cpu_ns(repeats, lambda: _Pickler.loads(_through_pipe(_Pickler.dumps(obj), *files)))
        ours_ns = _cpu_ns(repeats, lambda: (sender.put(obj, timeout=0), receiver.get(timeout=0)))
        for cell, count in ((PICKLE_NS, pickle_ns), (STANDARD_NS, standard_ns), (OURS_NS, ours_ns), (TRIALS, 1)):
            cells[row + cell] += count


def _cpu_ns(repeats: int, function: Callable[[], object]) -> int:
    function()  # warms up
    began = thread_time_ns()
    for _ in range(repeats):
        function()
    return (thread_time_ns() - began) // repeats


def _through_pipe(data: memoryview, reader: Any, writer: Any) -> memoryview:
    received = io.BytesIO()
    while (done := received.tell()) < len(data):
        received.write(reader.read(writer.write(data[done : done + CHUNK])))
    return received.getbuffer()


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
    ends = standard(duplex)
    _tag(here("Pipe").key, *ends)
    return ends


def make_queue(standard: Any, context: object, *arguments: Any, **options: Any) -> Any:
    return standard(context, *arguments, **options)


def _tagging(initialize: Any) -> Any:
    """Returns the `__init__` of a queue, which makes a row for the place that called it."""

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        kinds = (_queues.JoinableQueue, _Queue, _queues.SimpleQueue)
        kind = next(each.__name__ for each in kinds if isinstance(self, each))
        _tag(here(kind).key, self._reader, self._writer)

    return __init__


def _of_pipes(counted: Any) -> Any:
    """Returns a method of a connection that counts, except for the connections inside a queue."""
    standard = counted.__wrapped__

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return (counted if _key_of(self).startswith(_PIPES) else standard)(self, *arguments, **options)

    return functools.wraps(standard)(method)


def _timed_feed(buffer: Any, notempty: Any, send_bytes: Any, *arguments: Any) -> None:
    began = thread_time_ns()
    try:
        _feed(buffer, notempty, send_bytes, *arguments)
    finally:
        counters.cells[_row_of(send_bytes.__self__) + FEED_NS] += thread_time_ns() - began


def _wrap() -> None:
    _Connection._row = property(_row_of)
    pairs: Any = (("send", counting_put), ("recv", counting_get), ("poll", counting_poll))
    for name, counting in (*pairs, ("send_bytes", counting_put), ("recv_bytes", counting_get)):
        counted = counting(getattr(_Connection, name))
        setattr(_Connection, name, counted if name in ("send", "recv") else _of_pipes(counted))
    reduction.register(_Connection, _tagged_reduce)
    _Queue._feed = staticmethod(_timed_feed)
    joinable, simple = vars(_queues)["JoinableQueue"], vars(_queues)["SimpleQueue"]
    for cls in (_Queue, simple):
        cls._row = property(lambda self: _row_of(self._writer))
        cls.__init__, cls.get = _tagging(cls.__init__), counting_get(cls.get)
    for cls in (_Queue, joinable, simple):
        cls.put = counting_put(cls.put)
    on_sample.append(_try)


if getattr(sys, "_shmtree_run", {"profile": False})["profile"]:
    _wrap()
