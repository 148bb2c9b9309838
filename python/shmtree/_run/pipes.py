"""Shmtree's connections in place of the standard ones, with counters."""

from __future__ import annotations

from multiprocessing import connection as _standard
from typing import TYPE_CHECKING, Any

from .. import multiprocessing as _ours  # noqa: F401  # its send_handle and recv_handle accept these connections
from .._ipc import pipe as _pipe
from ..errors import Error
from . import counters, notes
from .counting import counting_get, counting_poll, counting_put
from .sites import here


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

    send = counting_put(_pipe.Connection.send)
    _next = counting_get(_pipe.Connection._next)
    poll = counting_poll(_pipe.Connection.poll)


def make_pipe(standard: Any, duplex: bool) -> tuple[Any, Any]:
    """Returns two connected connections; standard ones if shmtree cannot make them here."""
    try:
        ends = _pipe.Pipe(duplex)
    except (Error, OSError, MemoryError) as error:
        notes.add("Pipe", f"shmtree cannot make it: {error}")
        return tuple(standard(duplex))
    key = here("Pipe").key
    counters.cells[counters.row_of(key) + counters.OBJECTS] += 1
    first, second = (Connection._counted(each._receiver, each._sender, key) for each in ends)
    return first, second
