"""The standard queues and pipes with counters, for `shmtree run --profile`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from multiprocessing import connection as _connections
from multiprocessing import queues as _module
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from .._codec.frames import pack, unpack
from ..errors import PickleRefused
from . import counters, originals
from .counters import (
    GET_NS,
    GETS,
    HAS_FEEDER,
    OBJECTS,
    PICKLE_NS,
    PICKLE_SAMPLES,
    POLL_NS,
    PUT_NS,
    PUTS,
    RECEIPT_CPU_NS,
    RECEIPT_SAMPLES,
    RECEIPTS,
    REFUSALS,
    SEND_CPU_NS,
    SEND_SAMPLES,
    SENDS,
    SENT_BYTES,
    TRIAL_NS,
    TRIALS,
    UNPICKLE_NS,
    UNPICKLE_SAMPLES,
)
from .queues import ALL_SAMPLED, PERIOD, is_sampled, sampled_get, sampled_put
from .sites import here
from .sizes import size_of
from .substitute import Substitute

_MAX_TRIAL_BYTES = 64 << 20


class _Last(threading.local):
    """CPU times of this thread's last pickling and unpickling; 0 if they were not measured."""

    is_sampled = True  #: measure the next ones
    pickle_ns = 0
    unpickle_ns = 0


_last = _Last()


class _Bytes(NamedTuple):
    """A message of `send_bytes`, which the program has encoded itself."""

    buffer: Any


class _TimedPickler(ForkingPickler):
    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
        if not _last.is_sampled:
            return ForkingPickler.dumps(obj, protocol)
        began = thread_time_ns()
        data = ForkingPickler.dumps(obj, protocol)
        _last.pickle_ns = thread_time_ns() - began
        return data

    @staticmethod
    def loads(data: Any, /, **options: Any) -> Any:  # type: ignore[override]
        if not _last.is_sampled:
            return ForkingPickler.loads(data, **options)
        began = thread_time_ns()
        obj = ForkingPickler.loads(data, **options)
        _last.unpickle_ns = thread_time_ns() - began
        return obj


def _try(row: int, obj: object) -> None:
    """Encodes and decodes a message as shmtree would."""
    if size_of(obj)[0] > _MAX_TRIAL_BYTES:
        return
    cells = counters.cells
    # Items of an executor are objects of its own class: only their pickles have the native parts.
    pickles = type(obj).__module__ == "concurrent.futures.process"
    try:
        unpack(pack(obj, allow_pickle=pickles))  # warms up
        began = thread_time_ns()
        unpack(pack(obj, allow_pickle=pickles))
    except PickleRefused:
        cells[row + REFUSALS] += 1
        return
    except Exception:  # the program gets the error from its own call, if there is one
        return
    cells[row + TRIAL_NS] += thread_time_ns() - began
    cells[row + TRIALS] += 1


def _count_send(row: int, buffer: Any, send: Callable[[Any], Any]) -> None:
    """Calls `send`, which writes a pickled message into the pipe."""
    cells = counters.cells
    sends = cells[row + SENDS]
    cells[row + SENT_BYTES] += len(buffer)
    if not (sends % PERIOD == 0 or sends < ALL_SAMPLED):
        send(buffer)
        cells[row + SENDS] = sends + 1
    else:
        cpu = thread_time_ns()
        send(buffer)
        cells[row + SEND_CPU_NS] += thread_time_ns() - cpu
        cells[row + SEND_SAMPLES] += 1
        cells[row + SENDS] = sends + 1
    if _last.pickle_ns:
        cells[row + PICKLE_NS] += _last.pickle_ns
        cells[row + PICKLE_SAMPLES] += 1
        _last.pickle_ns = 0
    if cells[row + HAS_FEEDER]:  # the next message of this thread is of this queue, too
        _last.is_sampled = is_sampled(sends + 1)


def _count_receipt(row: int, receive: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `receive`, which reads a pickled message from the pipe."""
    cells = counters.cells
    receipts = cells[row + RECEIPTS]
    if not (receipts % PERIOD == 0 or receipts < ALL_SAMPLED):
        data = receive(*arguments)
    else:
        cpu = thread_time_ns()
        data = receive(*arguments)
        cells[row + RECEIPT_CPU_NS] += thread_time_ns() - cpu
        cells[row + RECEIPT_SAMPLES] += 1
    cells[row + RECEIPTS] = receipts + 1
    return data


def _count_put(row: int, obj: object, put: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Calls `put`. Tries the first, second, fourth, eighth, ... message."""
    cells = counters.cells
    count = cells[row + PUTS]
    if count & (count + 1) == 0 and not isinstance(obj, _Bytes):
        _try(row, obj)
    if count % PERIOD == 0 or count < ALL_SAMPLED:
        _last.is_sampled = True
        sampled_put(row, obj, lambda: put(*arguments, **options))
        return
    _last.is_sampled = False
    began = perf_counter_ns()
    try:
        put(*arguments, **options)
        cells[row + PUTS] += 1
    finally:
        cells[row + PUT_NS] += perf_counter_ns() - began


def _count_get(row: int, get: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    cells = counters.cells
    count = cells[row + GETS]
    if count % PERIOD == 0 or count < ALL_SAMPLED:
        _last.unpickle_ns = 0
        _last.is_sampled = True
        obj = sampled_get(row, lambda: get(*arguments, **options))
        if _last.unpickle_ns:
            cells[row + UNPICKLE_NS] += _last.unpickle_ns
            cells[row + UNPICKLE_SAMPLES] += 1
        return obj
    _last.is_sampled = False
    began = perf_counter_ns()
    try:
        obj = get(*arguments, **options)
        cells[row + GETS] += 1
        return obj
    finally:
        cells[row + GET_NS] += perf_counter_ns() - began


class Connection(_connections.Connection):
    """A standard connection that counts."""

    _key = ""
    _row = 0
    _is_inner = False  #: it belongs to a queue, which counts its own puts and gets

    @classmethod
    def convert(cls, connection: Any, key: str, is_inner: bool = False) -> Any:
        connection.__class__ = cls
        connection._key = key
        connection._row = counters.row_of(key)
        connection._is_inner = is_inner
        return connection

    def _send_bytes(self, buf: Any) -> None:
        _count_send(self._row, buf, super()._send_bytes)  # type: ignore[misc]

    def _recv_bytes(self, maxsize: int | None = None) -> Any:
        return _count_receipt(self._row, super()._recv_bytes, maxsize)  # type: ignore[misc]

    def send(self, obj: Any) -> None:
        _count_put(self._row, obj, super().send, obj)

    def recv(self) -> Any:
        return _count_get(self._row, super().recv)

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        if self._is_inner:
            super().send_bytes(buf, offset, size)
        else:
            _count_put(self._row, _Bytes(buf), super().send_bytes, buf, offset, size)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        if self._is_inner:
            return super().recv_bytes(maxlength)
        data: bytes = _count_get(self._row, super().recv_bytes, maxlength)
        return data

    def poll(self, timeout: float | None = 0.0) -> bool:
        if self._is_inner or (timeout is not None and timeout <= 0):
            return super().poll(timeout)
        began = perf_counter_ns()
        try:
            return super().poll(timeout)
        finally:
            counters.cells[self._row + POLL_NS] += perf_counter_ns() - began


def _reduce_connection(connection: Connection) -> Any:
    _, inner = _connections.reduce_connection(connection)  # type: ignore[attr-defined]
    return _rebuild_connection, (*inner, connection._key, connection._is_inner)


def _rebuild_connection(descriptor: Any, readable: bool, writable: bool, key: str, is_inner: bool) -> Any:
    made = _connections.rebuild_connection(descriptor, readable, writable)  # type: ignore[attr-defined]
    return Connection.convert(made, key, is_inner)


reduction.register(Connection, _reduce_connection)


def make_pipe(standard: Any, duplex: bool) -> Any:
    key = here("Pipe").key
    counters.cells[counters.row_of(key) + OBJECTS] += 1
    return tuple(Connection.convert(each, key) for each in standard(duplex))


class _Counting:
    """What the three classes of queues have in common."""

    _key = ""
    _row = 0
    _kind = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._become(here(self._kind).key)
        super().__init__(*arguments, **options)
        counters.cells[self._row + OBJECTS] += 1

    def _become(self, key: str) -> None:
        self._key = key
        self._row = counters.row_of(key)

    def __getstate__(self) -> Any:
        return self._key, super().__getstate__()  # type: ignore[misc]

    def __setstate__(self, state: Any) -> None:
        self._become(state[0])
        super().__setstate__(state[1])  # type: ignore[misc]

    def put(self, obj: Any, *arguments: Any, **options: Any) -> None:
        put: Any = super().put  # type: ignore[misc]
        _count_put(self._row, obj, put, obj, *arguments, **options)

    def get(self, *arguments: Any, **options: Any) -> Any:
        get: Any = super().get  # type: ignore[misc]
        return _count_get(self._row, get, *arguments, **options)


class Queue(_Counting, originals.Queue, metaclass=Substitute, standard=originals.Queue):  # type: ignore[type-arg]
    """A standard queue that counts."""

    _kind = "Queue"

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        row, send, receive = self._row, self._send_bytes, self._recv_bytes  # type: ignore[has-type]
        counters.cells[row + HAS_FEEDER] = 1
        self._send_bytes = lambda buffer: _count_send(row, buffer, send)
        self._recv_bytes = lambda: _count_receipt(row, receive)


class JoinableQueue(Queue, originals.JoinableQueue, standard=originals.JoinableQueue):  # type: ignore[type-arg]
    """A standard JoinableQueue that counts."""

    _kind = "JoinableQueue"


class SimpleQueue(_Counting, originals.SimpleQueue, metaclass=Substitute, standard=originals.SimpleQueue):  # type: ignore[type-arg]
    """A standard SimpleQueue that counts. A pool uses its connections, too."""

    _kind = "SimpleQueue"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for each in (self._reader, self._writer):  # type: ignore[attr-defined]
            Connection.convert(each, self._key, is_inner=True)


if getattr(sys, "_shmtree_run", {"profile": False})["profile"]:
    originals.claim()
    originals.GLOBALS["_ForkingPickler"] = _TimedPickler
    _connections._ForkingPickler = _TimedPickler  # type: ignore[attr-defined]
    for _each in (Queue, JoinableQueue, SimpleQueue):
        setattr(_module, _each.__name__, _each)
