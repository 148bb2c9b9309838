"""Shmtree's connections in place of the standard ones, with counters."""

from __future__ import annotations

from multiprocessing import connection as _standard
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .. import multiprocessing as _ours  # noqa: F401  # its send_handle and recv_handle accept these connections
from .._ipc import pipe as _pipe
from ..errors import Error
from . import counters, notes
from .counters import GET_NS, GETS, OBJECTS, PUT_NS
from .queues import counted_poll, is_sampled, sampled_get, sampled_put
from .sites import here

_send = _pipe.Connection.send
_next = _pipe.Connection._next
_poll = _pipe.Connection.poll


class Connection(_pipe.Connection):
    """A `multiprocessing.connection.Connection` that counts. It claims to be an instance of the standard class."""

    __slots__ = ("_key", "_row")

    _key: str
    _row: int

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> Any:
            return _standard.Connection

    @classmethod
    def _counted(cls, receiver: Any, sender: Any, key: str) -> Connection:
        self = cls.__new__(cls)
        self._receiver = receiver
        self._sender = sender
        self._key = key
        self._row = counters.row_of(key)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._counted, (self._receiver, self._sender, self._key)

    def send(self, obj: object) -> None:
        row = self._row
        cells = counters.cells
        if is_sampled(cells[row]):
            sampled_put(row, obj, lambda: _send(self, obj))
            return
        began = perf_counter_ns()
        try:
            _send(self, obj)
            cells[row] += 1
        finally:
            cells[row + PUT_NS] += perf_counter_ns() - began

    def _next(self, timeout: float | None = None) -> Any:
        row = self._row
        cells = counters.cells
        if is_sampled(cells[row + GETS]):
            return sampled_get(row, lambda: _next(self, timeout))
        began = perf_counter_ns()
        try:
            obj = _next(self, timeout)
            cells[row + GETS] += 1
            return obj
        finally:
            cells[row + GET_NS] += perf_counter_ns() - began

    def poll(self, timeout: float | None = 0.0) -> bool:
        return counted_poll(self._row, timeout, lambda: _poll(self, timeout))


def make_pipe(standard: Any, duplex: bool) -> tuple[Any, Any]:
    """Returns two connected connections; standard ones if shmtree cannot make them here."""
    try:
        made = _pipe.Pipe(duplex)
    except (Error, OSError, MemoryError) as error:
        notes.add("Pipe", f"shmtree cannot make it: {error}")
        return tuple(standard(duplex))
    key = here("Pipe").key
    counters.cells[counters.row_of(key) + OBJECTS] += 1
    first, second = (Connection._counted(each._receiver, each._sender, key) for each in made)
    return first, second
