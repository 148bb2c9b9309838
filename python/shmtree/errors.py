"""Errors of shmtree, in addition to ``queue.Full``, ``queue.Empty`` and ``TimeoutError``.

Every message contains the numbers concerned: bytes requested, the budget, the bytes in use and the processes that pin
them.
"""

from __future__ import annotations

import queue
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Frame

__all__ = [
    "ChannelClosed",
    "ConnectionLost",
    "CorruptMessage",
    "DeviceError",
    "Error",
    "IncompatibleArena",
    "IncompatibleMessage",
    "MessageTooLarge",
    "NotPortable",
    "OutOfSharedMemory",
    "Overrun",
    "PeerDied",
    "PickleRefused",
    "RemoteError",
    "ShutDown",
    "UnusedEndWarning",
    "WorkerFailed",
]


if hasattr(queue, "ShutDown"):
    ShutDown: type[Exception] = queue.ShutDown
else:

    class _ShutDown(Exception):
        """The queue was shut down. It is `queue.ShutDown` if Python has that (since 3.13)."""

    _ShutDown.__name__ = _ShutDown.__qualname__ = "ShutDown"
    ShutDown = _ShutDown


#: Hint for processes that are started from an interactive Python.
AT_A_PROMPT = (
    "What was typed at a prompt, or run by `python -i`, is not known to a process that spawn or forkserver starts, "
    "which then ends at once: put the function into a module and import it, or start the process by fork"
)


class Error(Exception):
    """Base of shmtree's own errors."""


class ChannelClosed(Error, EOFError, ValueError, BrokenPipeError):
    """This end was closed in this process, or the stream has ended and every message of it was delivered.

    It is also an ``EOFError``, a ``ValueError`` and a ``BrokenPipeError``, because these are the errors that the
    standard library's pipes and queues raise after a close.
    """


class Overrun(Error):
    """A subscriber with `on_lag="raise"` has missed messages.

    They were overwritten before it read them, or skipped after eight failed builds in a row.

    Attributes:
        missed: Number of missed messages. The next call continues with the oldest message in the ring.
    """

    def __init__(self, message: str = "", missed: int = 0) -> None:
        super().__init__(message)
        self.missed = missed

    def __reduce__(self) -> tuple[type[Overrun], tuple[str, int]]:
        return type(self), (str(self), self.missed)


class PeerDied(Error, ConnectionError):
    """No peer is left that could serve the call, and at least one was killed or failed.

    Attributes:
        pids: Process ids of the killed peers. A forked process that was killed before it stored its pid is only in the
            message, so `pids` may be empty.
    """

    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {AT_A_PROMPT}" if hasattr(sys, "ps1") else text


class WorkerFailed(PeerDied):
    """No peer is left that could serve the call, and at least one failed.

    A process fails if an uncaught exception ends it, or if an exception leaves the ``with`` block of its `Sender`. A
    child also fails if it calls ``sys.exit`` with a code other than 0. Ctrl-C is no failure.

    Attributes:
        pids: Process ids of all peers that failed or were killed.
        exit_code: The first known exit code of the failed peers. ``None`` if each of them closed its sender after an
        exception, and may still run.
    """

    exit_code: int | None = None


class ConnectionLost(PeerDied, EOFError, BrokenPipeError):
    """All processes at the other side of a `Pipe` have exited, and one of them was killed or failed.

    It is also the ``EOFError`` of `recv` and the ``BrokenPipeError`` of `send`, and a `WorkerFailed` if a process
    failed.
    """

    def __init__(self, *args: object, pids: tuple[int, ...] = ()) -> None:
        super().__init__(*args)
        self.pids = pids

    @staticmethod
    def _of(error: PeerDied, text: str | None = None) -> ConnectionLost:
        """Converts an error of a channel to that of the connection that contains it. Replaces the text if one is
        passed."""
        args = error.args if text is None else (text,)
        if not isinstance(error, WorkerFailed):
            return ConnectionLost(*args, pids=error.pids)
        failed = _ConnectionFailed(*args, pids=error.pids)
        failed.exit_code = error.exit_code
        return failed


class _ConnectionFailed(ConnectionLost, WorkerFailed):
    pass


class MessageTooLarge(Error, ValueError):
    """The message exceeds the budget. Raised at once, since waiting would not help."""


class OutOfSharedMemory(Error, MemoryError):
    """There is no memory for the message.

    Pinned views use up the budget of the arena, the machine has no memory left, or this process has no addresses left.
    Also raised if this process has no descriptors left to open an end in a message. If `get` raises this error, the
    message stays in the channel.
    """


class RemoteError(Error):
    """A `Service` failed a request.

    Attributes:
        kind: Class name of the exception in the server; "" if there was none.
        dropped: True if the server dropped the request without an answer, or exited.
    """

    dropped = False

    def __init__(self, kind: str = "", text: str = "") -> None:
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self) -> str:
        kind, text = self.args
        return f"{kind}: {text}" if kind else str(text)


class CorruptMessage(Error, ValueError):
    """The bytes of the message are not those that a sender of this version writes. The message is consumed, and the
    channel stays usable.

    Attributes:
        ticket: Number that ``put`` gave the message, or ``None`` outside of a channel.
    """

    ticket: int | None = None


class IncompatibleMessage(CorruptMessage):
    """The message is intact, but this process cannot build its value.

    There are five causes. The frame is of a version that this shmtree does not read. A class is missing here (the
    ImportError or AttributeError is the ``__cause__``), or has other fields than at the sender. An Enum lacks a member.
    A time zone is not installed. The elements of an array or tensor need a package, or a version of one, that is not
    installed. The text names the class, what differs, and where the object is in the message. This is a
    ``CorruptMessage``, so that programs that skip unreadable messages also skip this one. The message is consumed;
    `frame` has its bytes.

    Attributes:
        path: Path of that object in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None`` if
            it is not known.
        frame: The message as a `Frame`, for `describe`, `dump` or `put_frame`; ``None`` outside of a channel, for a
            frame of another version, and if there was no memory for it.
    """

    path: str | None = None
    frame: Frame | None = None


class PickleRefused(Error, TypeError):
    """The message needs pickle, or a class that is neither imported nor registered, and that is not allowed.

    The text names the object, its path, and the origin of the refusal: this end, the maker of the channel, or the call.
    Channels with a name refuse pickles by default; `allow_pickle=True` at both ends allows them.

    Attributes:
        path: Path of that object in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None`` if
            it is not known.
    """

    path: str | None = None


class NotPortable(Error, ValueError):
    """A portable message contains an object that is valid on this machine only.

    The text names the object and its path.

    Attributes:
        path: Path of that object in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None`` if
            it is not known.
    """

    path: str | None = None


class DeviceError(Error, RuntimeError):
    """The CUDA driver or a device is missing, or cannot do what the call needs.

    Attributes:
        code: The driver's error number, or 0 if the driver did not report the error.
    """

    def __init__(self, message: str = "", *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UnusedEndWarning(RuntimeWarning):
    """A call has waited for 10 s for an end that the processes with that end have never used.

    An example is a process that only starts others, and does not close the ends that it passed to them. Another example
    is an end that was sent and never loaded. The stream does not end before that process closes its end or exits. The
    text names the process. No warning is issued while a process that was given the end is attached to it.
    """


class IncompatibleArena(Error, RuntimeError):
    """The file is not an arena; or an arena, object, handle or name file has another version.

    The text has both version numbers.
    """
