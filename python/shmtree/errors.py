"""What shmtree raises besides ``queue.Full``, ``queue.Empty`` and ``TimeoutError``.

Every message names the numbers it is about: bytes asked for, the budget, what is in use and who holds it.
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
]


if hasattr(queue, "ShutDown"):
    ShutDown: type[Exception] = queue.ShutDown
else:

    class _ShutDown(Exception):
        """The queue was shut down; it is `queue.ShutDown` where Python has that (since 3.13)."""

    _ShutDown.__name__ = _ShutDown.__qualname__ = "ShutDown"
    ShutDown = _ShutDown


#: What those meet who start processes from an interactive Python.
AT_A_PROMPT = (
    "What was typed at a prompt, or run by `python -i`, is not known to a process that spawn or forkserver starts, "
    "which then ends at once: put the function into a module and import it, or start the process by fork"
)


class Error(Exception):
    """Base of shmtree's own errors."""


class ChannelClosed(Error, EOFError, ValueError, BrokenPipeError):
    """This end was closed here, or the stream has ended and everything in it was delivered.

    It is an ``EOFError``, a ``ValueError`` and a ``BrokenPipeError`` as well, because that is what the standard
    library's pipes and queues raise for it.
    """


class Overrun(Error):
    """A subscriber that wants to be told of it has missed messages.

    They were overwritten before it read them, or given up after eight failed builds in a row.

    Attributes:
        missed: how many. The next call reads on with the oldest that is there.
    """

    def __init__(self, message: str = "", missed: int = 0) -> None:
        super().__init__(message)
        self.missed = missed

    def __reduce__(self) -> tuple[type[Overrun], tuple[str, int]]:
        return type(self), (str(self), self.missed)


class PeerDied(Error, ConnectionError):
    """Nobody is left who could serve the call, and one of them was killed.

    Attributes:
        pids: the process ids of the killed peers.
    """

    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {AT_A_PROMPT}" if hasattr(sys, "ps1") else text


class ConnectionLost(PeerDied, EOFError, BrokenPipeError):
    """The other side of a `Pipe` is gone, and somebody there was killed.

    It is the ``EOFError`` of `recv` and the ``BrokenPipeError`` of `send` as well.
    """

    def __init__(self, *args: object, pids: tuple[int, ...] = ()) -> None:
        super().__init__(*args)
        self.pids = pids


class MessageTooLarge(Error, ValueError):
    """The message is over the budget. Raised at once, since waiting would not help."""


class OutOfSharedMemory(Error, MemoryError):
    """Views that are held, the machine, or this process's addresses leave no memory for the message.

    Also raised if this process has no descriptors left to open an end in a message. A message that was to be received
    stays in the channel.
    """


class RemoteError(Error):
    """A `Service` failed a request.

    Attributes:
        kind: the name of the class of what was raised there; "" for none.
    """

    def __init__(self, kind: str = "", text: str = "") -> None:
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self) -> str:
        kind, text = self.args
        return f"{kind}: {text}" if kind else str(text)


class CorruptMessage(Error, ValueError):
    """Bytes that no sender of this version writes. The message is consumed, the channel stays usable.

    Attributes:
        ticket: the number ``put`` gave the message, or ``None`` outside of a channel.
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
        path: where that object is in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None``
            if it is not known.
        frame: the message as a `Frame`, for `describe`, `dump` or `put_frame`; ``None`` outside of a channel, for a
            frame of another version, and if there was no memory for it.
    """

    path: str | None = None
    frame: Frame | None = None


class PickleRefused(Error, TypeError):
    """The message needs pickle, or a class that is neither imported nor registered, and that is not allowed.

    The text names the object, where it lies, and who refuses: the end, whoever made the channel, or the call.

    Attributes:
        path: where that object lies in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None``
            when it is not known.
    """

    path: str | None = None


class NotPortable(Error, ValueError):
    """The message has something in it that means nothing on another machine, and is to be portable.

    The text names the object and where it lies.

    Attributes:
        path: where that object lies in the message, such as ``["obs"][0].cfg``; empty for the message itself, ``None``
            when it is not known.
    """

    path: str | None = None


class DeviceError(Error, RuntimeError):
    """The CUDA driver, or a device, is not there or cannot do what the call needs.

    Attributes:
        code: the driver's number for it, or 0 when the driver was not the one to say so.
    """

    def __init__(self, message: str = "", *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UnusedEndWarning(RuntimeWarning):
    """Whoever waits at a channel has waited for 10 s for an end that those who have it never used.

    Such as a process that only started the others and did not close the ends it gave away, or an end that was sent and
    never loaded: the stream does not end as long as that process lives. The text names it. No warning is issued
    while a process that was given the end is attached to it.
    """


class IncompatibleArena(Error, RuntimeError):
    """The file is not an arena; or an arena, object, handle or name file has another version.

    The text has both version numbers.
    """
