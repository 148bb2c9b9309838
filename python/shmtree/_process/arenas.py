"""The default arenas of this process, for objects that are made without an arena."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol

from .. import _core
from ..errors import ChannelClosed


class HasChannel(Protocol):
    """The part of a queue's interface that this module needs. Queues are built on top of this module."""

    @property
    def _channel(self) -> _core.Channel: ...


_default: tuple[int, _core.Arena] | None = None
_given: weakref.ref[HasChannel] | None = None
_lock = threading.Lock()


def default_arena() -> _core.Arena:
    """Returns the arena of channels that are made without one. Each process, also a forked child, makes its own."""
    global _default
    with _lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), _core.Arena.create(0, 0, False))
        return _default[1]


def note_given(queue: HasChannel) -> None:
    """Records a queue that another process passed to this one."""
    global _given
    _given = weakref.ref(queue)


def home_arena() -> _core.Arena | None:
    """Returns the arena in which a worker should make the data that it will send.

    That is the arena of the last queue that another process passed to this one. A forked child uses the arena in which
    its parent makes channels, since no queue is passed to it. Returns None if there is no such arena.
    """
    if _given is not None and (queue := _given()) is not None:
        with contextlib.suppress(ChannelClosed):
            return queue._channel.arena
    return _default[1] if _default is not None else None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
