"""The arenas that this process makes things in where it is given none."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol

from .. import _core
from ..errors import ChannelClosed


class HasChannel(Protocol):
    """A queue, which is built on top of this."""

    @property
    def _channel(self) -> _core.Channel: ...


_default: tuple[int, _core.Arena] | None = None
_given: weakref.ref[HasChannel] | None = None
_lock = threading.Lock()


def default_arena() -> _core.Arena:
    """The arena of channels made without one: one per process, a forked child makes its own."""
    global _default
    with _lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), _core.Arena.create(0, 0, False))
        return _default[1]


def note_given(queue: HasChannel) -> None:
    """Another process gave this one a queue."""
    global _given
    _given = weakref.ref(queue)


def home_arena() -> _core.Arena | None:
    """Where a worker should make what it is going to send: the arena of the queue it was given last.

    In a forked child, which is given nothing, the arena that its parent makes channels in. None if there is neither.
    """
    if _given is not None and (queue := _given()) is not None:
        with contextlib.suppress(ChannelClosed):
            return queue._channel.arena
    return _default[1] if _default is not None else None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
