"""What belongs to the process as a whole: its default arena, the names it takes part in, and its exit."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from . import _core, _launch
from .errors import ChannelClosed


class HasChannel(Protocol):
    """A queue, which is built on top of this."""

    @property
    def _channel(self) -> _core.Channel: ...


_T = TypeVar("_T")

# The last process that has a name may exit between our attempt to open it and our attempt to make it.
_MAX_TURNS = 16

_default: tuple[int, _core.Arena] | None = None
_given: weakref.ref[HasChannel] | None = None
_lock = threading.Lock()
_leavings: list[Callable[[], None]] = []
_endings: list[Callable[[], None]] = []
_waits: list[Callable[[], None]] = []


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


def create_name(name: str, kind: int, arena: _core.Arena, block: int = 0, note: str = "") -> _core.Name:
    check_name(name)
    _launch.sweep()
    return _core.Name.create(name, kind, arena, block, note)


def check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; it must be a str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name is {name!r}; it has characters that no file's name can have") from None


def open_name(name: str, timeout: float | None = 0.0) -> _core.Name:
    """What has that name. FileNotFoundError when nothing has, or TimeoutError after so many seconds (None: never)."""
    check_name(name)
    _launch.sweep()
    return _core.Name.open(name, timeout)


def open_or_make(name: str | None, exist_ok: bool, known: Callable[[str], _T], make: Callable[[], _T]) -> _T:
    """Returns `known(name)` if `exist_ok` is set and the name exists; otherwise `make()`, which makes the name.

    If several processes do this at once, exactly one makes the name.
    """
    if not exist_ok:
        return make()
    if name is None:
        raise ValueError("exist_ok requires a name")
    for turn in range(_MAX_TURNS):
        with contextlib.suppress(FileNotFoundError):
            return known(name)
        try:
            return make()
        except FileExistsError:
            if turn == _MAX_TURNS - 1:
                raise
    raise AssertionError("not reached")


def check_known(name: str, arena: _core.Arena, asked: _core.Arena | None, check: Callable[[], None]) -> None:
    """Raises ValueError, which names the difference, unless the object with that name has the options asked for."""
    if asked is not None and asked.uuid != arena.uuid:
        raise ValueError(f'the name "{name}": it belongs to something in another arena than the one given')
    try:
        check()
    except ValueError as error:
        raise ValueError(f'the name "{name}": {error}') from None


def before_leaving(function: Callable[[], None]) -> None:
    """Calls it when this process ends, while it takes part in its channels."""
    _leavings.append(function)


def before_end(function: Callable[[], None]) -> None:
    """Calls it when this process ends: it takes part in no channel any more, and what it holds it still holds."""
    _endings.append(function)


def wait_at_end(function: Callable[[], None]) -> None:
    """Calls it after all that, and when the children of multiprocessing are gone: it may wait for what they hold."""
    _waits.append(function)


_lock_owners: dict[str, weakref.WeakSet[Any]] = {}


def lock_in(owner: object, name: str) -> threading.Lock:
    """Returns a lock for that attribute of `owner`. A forked child gets a new one: it lacks the thread that held it."""
    _lock_owners.setdefault(name, weakref.WeakSet()).add(owner)
    return threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for name, owners in _lock_owners.items():
        for owner in list(owners):
            setattr(owner, name, threading.Lock())
    _core.forget_exit()
    _launch.after_fork()
    _expect_end()


def _at_exit() -> None:
    """Ends this process's part in all channels and names. What it has put stays, and so do views."""
    for function in _leavings:
        function()
    _core.leave_all()
    _core.leave_names()
    for function in _endings:
        function()


def _at_very_end() -> None:
    for function in _waits:
        function()


def _expect_end() -> None:
    # multiprocessing ends daemons and joins the others at the exit of their parent, which comes after the functions of
    # atexit that were registered later. What has a priority below 0 is run after that.
    multiprocessing.util.Finalize(None, _at_very_end, exitpriority=-100)


def _at_exit_of_child() -> None:
    # multiprocessing joins the other threads of a child only after this, and they may still have something to put.
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    _at_exit()
    _at_very_end()


def _expect_exit(_: object = None) -> None:
    # Children of multiprocessing leave through os._exit, which runs these and no atexit functions.
    multiprocessing.util.Finalize(None, _at_exit_of_child, exitpriority=-100)


class _Anchor:
    """multiprocessing runs what is to run in forked children for as long as an object lives."""


_anchor = _Anchor()
multiprocessing.util.register_after_fork(_anchor, _expect_exit)
if multiprocessing.process.parent_process() is not None:
    _expect_exit()
else:
    _expect_end()
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
