"""Connections with the interface and behaviour of multiprocessing's, on the ends of one or two channels."""

from __future__ import annotations

from multiprocessing.context import BufferTooShort
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _core
from .._process import arenas
from .._public import made_by
from ..errors import ConnectionLost, PeerDied
from .channel import Receiver, Sender, ends_of

_C = TypeVar("_C", bound="Connection")


class _Bytes(NamedTuple):
    """A message of `send_bytes`: its type distinguishes it from the objects that `send` sends."""

    view: memoryview


@made_by("Pipe()")
class Connection:
    """One end of a `Pipe`: the counterpart of `multiprocessing.connection.Connection` in shared memory.

    It sends any object that a `Sender` takes, and large arrays are received as views. Several threads may use a
    connection. It can be inherited over fork, passed to processes as an argument with any start method, and sent
    through pipes and queues to running processes.

    The other side is gone when every process that has it has closed it, exited or died. Once it is gone, `recv` raises
    EOFError after the last message, and `send` raises BrokenPipeError. Both are ConnectionLost and list the pids if a
    process was killed. The process that called `Pipe` has both sides until it closes one, so it can give its end to one
    worker after another. A process that multiprocessing forks has only the ends that it was given or uses. `recv` also
    raises EOFError when it could only block forever: every process that has the other side is blocked itself, and none
    of them ever used it.
    """

    _receiver: Receiver | None
    _sender: Sender | None

    @classmethod
    def _of(cls, receiver: Receiver | None, sender: Sender | None) -> Connection:
        self = cls.__new__(cls)
        self._receiver = receiver
        self._sender = sender
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self._receiver, self._sender)

    @property
    def readable(self) -> bool:
        """True if this end can `recv`."""
        return self._receiver is not None

    @property
    def writable(self) -> bool:
        """True if this end can `send`."""
        return self._sender is not None

    @property
    def closed(self) -> bool:
        """True if `close` was called on this connection."""
        return (self._receiver is None or self._receiver.closed) and (self._sender is None or self._sender.closed)

    def close(self) -> None:
        """Closes this connection in this process. Received views stay valid."""
        for end in (self._receiver, self._sender):
            if end is not None:
                end.close()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the connection. Reports an exception to the other side as `Sender.__exit__` does."""
        if self._sender is not None and not isinstance(exception[1], (EOFError, BrokenPipeError)):
            self._sender.__exit__(*exception)
        self.close()

    def __repr__(self) -> str:
        ways = " and ".join([way for way, has in (("readable", self.readable), ("writable", self.writable)) if has])
        return f"<Connection, {'closed' if self.closed else ways}>"

    def send(self, obj: object) -> None:
        """Sends an object. Blocks only while the machine's memory, or the arena's budget, has no space for it.

        Args:
            obj: Object to send.

        Raises:
            BrokenPipeError: The other side is gone.
            ConnectionLost: The same, and a process of it was killed or failed.
            OSError: This connection only receives, or is closed.
        """
        sender = self._writing()
        try:
            sender._check_receivers()
            sender.put(obj)
        except PeerDied as error:
            raise ConnectionLost._of(error) from None

    def recv(self) -> Any:
        """Returns the next object, and waits for it.

        Raises:
            EOFError: The other side is gone and every message is received.
            ConnectionLost: The same, and a process of it was killed or failed.
            OSError: This connection only sends, or is closed.
        """
        return self._recv(None)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Returns True if there is a message, or the end of the stream, in time.

        Args:
            timeout: Seconds to wait; None waits indefinitely.
        """
        return self._reading()._wait_until_ready(timeout)

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Sends the bytes of a buffer for `recv_bytes`.

        Args:
            buf: A contiguous buffer.
            offset: First byte to send.
            size: Number of bytes; None sends all from `offset` on.

        Raises:
            ValueError: `offset` or `size` is outside of the buffer. The other errors are those of `send`.
        """
        self.send(_Bytes(_part(buf, offset, size)))

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Returns the next message as bytes; an object that was sent arrives pickled.

        Args:
            maxlength: Maximum number of bytes; None means no limit.

        Raises:
            OSError: The message is longer than `maxlength` bytes. It is lost, and so is everything that this end could
                have received after it.
            ValueError: `maxlength` is negative.
            EOFError: The other side is gone.
        """
        if maxlength is not None and maxlength < 0:
            raise ValueError(f"maxlength is {maxlength}; it must not be negative")
        view = self._next_bytes()
        if maxlength is not None and len(view) > maxlength:
            self._reading().close()
            raise OSError(f"the message has {len(view)} bytes, but maxlength is {maxlength}; this end is closed now")
        return bytes(view)

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        """Writes the next message to a buffer.

        Args:
            buf: A writable, contiguous buffer.
            offset: First byte to write.

        Returns:
            The length of the message in bytes.

        Raises:
            multiprocessing.BufferTooShort: The buffer has no space for the message; the error contains the whole
                message.
            TypeError: The buffer is read-only or its items have gaps between them; no message is received.
            EOFError: The other side is gone.
        """
        target = _part(buf, offset, None)
        if target.readonly:
            raise TypeError("the buffer is read-only; it must be writable")
        view = self._next_bytes()
        if len(view) > len(target):
            raise BufferTooShort(bytes(view))
        target[: len(view)] = view
        return len(view)

    def fileno(self) -> int:
        """Returns a descriptor for `wait` and poll loops, ready when that of a standard connection is.

        It is readable while a message waits, and after the end of the stream. The descriptor of a connection that only
        sends is readable once the other side is gone. If the connection sends, its descriptor is always ready for
        writing, because `send` waits only for memory. The descriptor belongs to the connection; do not read or write
        it.

        Raises:
            shmtree.Error: This process already watches 4,096 ends of channels of the arena.
        """
        if self._receiver is None:
            return self._writing()._writable_fileno()
        return self._receiver.fileno() if self._sender is None else self._receiver._writable_fileno()

    def _open_to_wait(self) -> tuple[int, bool]:
        return (self.fileno(), False) if self._receiver is None else self._receiver._open_to_wait()

    def _close_after_wait(self) -> None:
        if self._receiver is not None:
            self._receiver._close_after_wait()

    def _ready(self) -> bool:
        return self._writing()._ready_to_put() if self._receiver is None else self._receiver._ready()

    def _reading(self) -> Receiver:
        if self._receiver is None:
            raise OSError("this connection is write-only")
        return self._receiver

    def _writing(self) -> Sender:
        if self._sender is None:
            raise OSError("this connection is read-only")
        return self._sender

    def _recv(self, timeout: float | None) -> Any:
        obj = self._next(timeout)
        return ForkingPickler.loads(obj.view) if type(obj) is _Bytes else obj

    def _next(self, timeout: float | None = None) -> Any:
        receiver = self._reading()
        try:
            return receiver.get(timeout=timeout)
        except PeerDied as error:
            raise ConnectionLost._of(error) from None

    def _next_bytes(self) -> memoryview:
        obj = self._next()
        return obj.view if type(obj) is _Bytes else memoryview(ForkingPickler.dumps(obj))


def _part(buf: Any, offset: int, size: int | None) -> memoryview:
    """Returns the bytes of a buffer from `offset` on: `size` of them, or all."""
    view = memoryview(buf)
    if view.format != "B" or view.ndim != 1:
        if not view.c_contiguous:
            raise TypeError("the buffer is not contiguous; pass a contiguous one")
        view = np.frombuffer(view, np.uint8).data if view.nbytes else memoryview(bytearray())
    if offset < 0:
        raise ValueError(f"offset is {offset}; it must not be negative")
    if offset > len(view):
        raise ValueError(f"offset is {offset}, but the buffer has {len(view)} bytes")
    if size is None:
        return view[offset:]
    if size < 0:
        raise ValueError(f"size is {size}; it must not be negative")
    if offset + size > len(view):
        raise ValueError(f"offset is {offset} and size is {size}, but the buffer has {len(view)} bytes")
    return view[offset : offset + size]


def _one_way() -> tuple[Sender, Receiver]:
    return ends_of(*_core.make_channel("pipe", arena=arenas.default_arena()))


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """Returns two connected `Connection` objects.

    Messages wait in shared memory, as many as the arena's budget allows. Two processes that both send before they
    receive do not block each other.

    Args:
        duplex: If False, the first connection only receives and the second only sends.
    """
    there, here = _one_way()
    if not duplex:
        return Connection._of(here, None), Connection._of(None, there)
    back, again = _one_way()
    return Connection._of(here, back), Connection._of(again, there)
