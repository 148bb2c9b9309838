"""The standard queues and pipes with counters, for `shmtree run --profile`.

A sampled call does what the standard method does, in steps that are timed. All other calls only add their time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from multiprocessing import connection as _connections
from multiprocessing import queues as _module
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns, thread_time_ns
from typing import Any

from . import counters, originals
from .counters import GET_NS, GETS, HAS_FEEDER, OBJECTS, PUT_NS
from .queues import ALL_SAMPLED, PERIOD, counted_poll, is_sampled, sampled_get, sampled_put
from .samples import count_received, count_sent, sample_put
from .sites import here
from .substitute import Substitute

_IS_PROFILING = getattr(sys, "_shmtree_run", {"profile": False})["profile"]

if _IS_PROFILING:
    originals.claim()  # before the methods of the standard classes are looked up below


class _Thread(threading.local):
    unpickle_ns = 0  #: CPU time of the last unpickling that was measured


_thread = _Thread()


class _Feeder:
    """Pickles and sends the messages of one queue, in the thread that the standard queue has for it."""

    def __init__(self, row: int, send: Callable[[Any], Any], names: dict[str, Any]) -> None:
        self._row = row
        self._send = send
        self._names = names  #: globals of the standard method that runs in the thread
        self._count = 0
        self._pickle_ns = 0
        self._sample()

    def _sample(self) -> None:
        """Measures the next message, or stops that."""
        self._is_sampled = is_sampled(self._count)
        self._names["_ForkingPickler"] = self if self._is_sampled else ForkingPickler

    def dumps(self, obj: Any) -> Any:
        began = thread_time_ns()
        data = ForkingPickler.dumps(obj)
        self._pickle_ns = thread_time_ns() - began
        return data

    def send(self, buffer: Any) -> None:
        if not self._is_sampled:
            self._send(buffer)
        else:
            began = thread_time_ns()
            self._send(buffer)
            count_sent(self._row, self._pickle_ns, thread_time_ns() - began)
        self._count = count = self._count + 1
        if (count % PERIOD == 0 or count < ALL_SAMPLED) is not self._is_sampled:
            self._sample()


class _FeederClass:
    """Stands for the standard class where it starts the thread, which calls `_feed`."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __getattr__(self, name: str) -> Any:
        return getattr(originals.Queue, name)


class _GetPickler:
    """The pickler of a sampled `Queue.get`."""

    @staticmethod
    def loads(data: Any) -> Any:
        began = thread_time_ns()
        obj = ForkingPickler.loads(data)
        _thread.unpickle_ns = thread_time_ns() - began
        return obj


_sampled_queue_get = originals.rebound(originals.Queue.get, {**originals.GLOBALS, "_ForkingPickler": _GetPickler})


_send = _connections.Connection.send
_send_bytes = _connections.Connection.send_bytes
_recv = _connections.Connection.recv
_recv_bytes = _connections.Connection.recv_bytes
_poll = _connections.Connection.poll


class _InnerConnection(_connections.Connection):
    """A connection of a SimpleQueue, which a pool uses directly. Counts its objects."""

    _key = ""
    _row = 0

    @classmethod
    def convert(cls, connection: Any, key: str) -> Any:
        """Returns a connection that takes over the descriptor of a standard one."""
        made = cls(connection.fileno(), connection.readable, connection.writable)
        connection._handle = None
        made._key = key
        made._row = counters.row_of(key)
        return made

    def send(self, obj: Any) -> None:
        row = self._row
        cells = counters.cells
        if (count := cells[row]) % PERIOD == 0 or count < ALL_SAMPLED:
            sample_put(row, count, obj, lambda: self._sampled_send(obj))
            return
        began = perf_counter_ns()
        try:
            _send(self, obj)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def _sampled_send(self, obj: Any) -> None:
        self._check_closed()  # type: ignore[attr-defined]
        self._check_writable()  # type: ignore[attr-defined]
        began = thread_time_ns()
        data = ForkingPickler.dumps(obj)
        pickled = thread_time_ns()
        self._send_bytes(data)  # type: ignore[attr-defined]
        count_sent(self._row, pickled - began, thread_time_ns() - pickled)

    def recv(self) -> Any:
        row = self._row
        cells = counters.cells
        if (count := cells[row + GETS]) % PERIOD == 0 or count < ALL_SAMPLED:
            return sampled_get(row, self._sampled_recv)
        began = perf_counter_ns()
        try:
            obj = _recv(self)
            cells[row + GETS] += 1
            return obj
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began

    def _sampled_recv(self) -> Any:
        self._check_closed()  # type: ignore[attr-defined]
        self._check_readable()  # type: ignore[attr-defined]
        began = thread_time_ns()
        data = self._recv_bytes()  # type: ignore[attr-defined]
        received = thread_time_ns()
        obj = ForkingPickler.loads(data.getbuffer())
        count_received(self._row, received - began, thread_time_ns() - received)
        return obj


class Connection(_InnerConnection):
    """A standard connection that counts."""

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        row = self._row
        cells = counters.cells
        if is_sampled(cells[row]):
            sampled_put(row, buf, lambda: _send_bytes(self, buf, offset, size))
            return
        began = perf_counter_ns()
        try:
            _send_bytes(self, buf, offset, size)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        row = self._row
        cells = counters.cells
        data: bytes
        if is_sampled(cells[row + GETS]):
            data = sampled_get(row, lambda: _recv_bytes(self, maxlength))
            return data
        began = perf_counter_ns()
        try:
            data = _recv_bytes(self, maxlength)
            cells[row + GETS] += 1
            return data
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began

    def poll(self, timeout: float | None = 0.0) -> bool:
        return counted_poll(self._row, timeout, lambda: _poll(self, timeout))


def _reduce_connection(connection: _InnerConnection) -> Any:
    _, inner = _connections.reduce_connection(connection)  # type: ignore[attr-defined]
    return _rebuild_connection, (type(connection), connection._key, *inner)


def _rebuild_connection(cls: type[_InnerConnection], key: str, *inner: Any) -> Any:
    return cls.convert(_connections.rebuild_connection(*inner), key)  # type: ignore[attr-defined]


reduction.register(_InnerConnection, _reduce_connection)
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


class Queue(_Counting, originals.Queue, metaclass=Substitute, standard=originals.Queue):  # type: ignore[type-arg]
    """A standard queue that counts."""

    _kind = "Queue"
    _standard_put = staticmethod(originals.Queue.put)
    _standard_get = staticmethod(originals.Queue.get)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        row = self._row
        cells = counters.cells
        if (count := cells[row]) % PERIOD == 0 or count < ALL_SAMPLED:
            sample_put(row, count, obj, lambda: self._standard_put(self, obj, block, timeout))
            return
        began = perf_counter_ns()
        try:
            self._standard_put(self, obj, block, timeout)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        row = self._row
        cells = counters.cells
        if (count := cells[row + GETS]) % PERIOD == 0 or count < ALL_SAMPLED:
            return sampled_get(row, lambda: self._sampled_get(block, timeout))
        began = perf_counter_ns()
        try:
            obj = self._standard_get(self, block, timeout)
            cells[row + GETS] += 1
            return obj
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began

    def _sampled_get(self, block: bool, timeout: float | None) -> Any:
        receive: Any = self._reader.recv_bytes  # type: ignore[attr-defined]
        took = 0

        def timed_receive() -> Any:
            nonlocal took
            began = thread_time_ns()
            data = receive()
            took = thread_time_ns() - began
            return data

        self._recv_bytes = timed_receive
        try:
            obj = _sampled_queue_get(self, block, timeout)
        finally:
            self._recv_bytes = receive
        count_received(self._row, took, _thread.unpickle_ns)
        return obj

    def _start_thread(self) -> None:
        names = dict(originals.GLOBALS)
        names["Queue"] = _FeederClass(originals.rebound(originals.Queue._feed, names))  # type: ignore[attr-defined]
        self._send_bytes = _Feeder(self._row, self._send_bytes, names).send  # type: ignore[has-type]
        counters.cells[self._row + HAS_FEEDER] = 1
        originals.rebound(originals.Queue._start_thread, names)(self)  # type: ignore[attr-defined]


class JoinableQueue(Queue, originals.JoinableQueue, standard=originals.JoinableQueue):  # type: ignore[type-arg]
    """A standard JoinableQueue that counts."""

    _kind = "JoinableQueue"
    _standard_put = staticmethod(originals.JoinableQueue.put)


_simple_put = originals.SimpleQueue.put
_simple_get = originals.SimpleQueue.get


class SimpleQueue(_Counting, originals.SimpleQueue, metaclass=Substitute, standard=originals.SimpleQueue):  # type: ignore[type-arg]
    """A standard SimpleQueue that counts. A pool uses its connections, too."""

    _kind = "SimpleQueue"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reader = _InnerConnection.convert(self._reader, self._key)  # type: ignore[has-type]
        self._writer = _InnerConnection.convert(self._writer, self._key)  # type: ignore[has-type]
        self._poll = self._reader.poll

    def put(self, obj: Any) -> None:
        row = self._row
        cells = counters.cells
        if (count := cells[row]) % PERIOD == 0 or count < ALL_SAMPLED:
            sample_put(row, count, obj, lambda: self._sampled_put(obj))
            return
        began = perf_counter_ns()
        try:
            _simple_put(self, obj)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def _sampled_put(self, obj: Any) -> None:
        began = thread_time_ns()
        data = ForkingPickler.dumps(obj)
        pickled = thread_time_ns()
        with self._wlock:  # type: ignore[attr-defined]
            self._writer.send_bytes(data)
        count_sent(self._row, pickled - began, thread_time_ns() - pickled)

    def get(self) -> Any:
        row = self._row
        cells = counters.cells
        if (count := cells[row + GETS]) % PERIOD == 0 or count < ALL_SAMPLED:
            return sampled_get(row, self._sampled_get)
        began = perf_counter_ns()
        try:
            obj = _simple_get(self)
            cells[row + GETS] += 1
            return obj
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began

    def _sampled_get(self) -> Any:
        with self._rlock:  # type: ignore[attr-defined]
            began = thread_time_ns()
            data = self._reader.recv_bytes()
            received = thread_time_ns()
        unpickling = thread_time_ns()
        obj = ForkingPickler.loads(data)
        count_received(self._row, received - began, thread_time_ns() - unpickling)
        return obj


if _IS_PROFILING:
    for _each in (Queue, JoinableQueue, SimpleQueue):
        setattr(_module, _each.__name__, _each)
