"""Lets any number of coroutines wait for ends through one descriptor of the process, its hub.

A process that puts, receives or closes sends the name of the end to the hub, once per request of a coroutine here. The
first loop that sees the hub readable takes all names, and passes them to the other loops that wait for them. So a loop
that is busy or stopped delays no other loop. If the hub had no space for all names, every waiting coroutine is checked.
They are also checked periodically, since dead processes wake none.

Only the thread of a loop changes the state of that loop. Loops are referenced weakly: closing a loop releases the
coroutines that wait in it.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    import asyncio

SLICE_S = 0.25


class Awaited:
    """An end for which a coroutine waits."""

    __slots__ = ("ask", "began", "is_ready", "keys", "note", "woken")
    woken: asyncio.Future[None]
    ask: Callable[[_core.WakeHub], bool]
    is_ready: Callable[[], bool]
    note: Callable[[float], None]

    def __init__(
        self,
        keys: tuple[bytes, int],
        ask: Callable[[_core.WakeHub], bool],
        is_ready: Callable[[], bool],
        note: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`keys`: the name that the hub reports, and the id of the object that may be closed."""
        self.began = time.monotonic()
        self.keys, self.ask, self.is_ready, self.note = keys, ask, is_ready, note

    @classmethod
    def to_get(cls, end: Any) -> Awaited:
        return cls((end._name_to_get(), id(end)), end._await_to_get, end._ready, end._note_wait_to_get)

    @classmethod
    def to_put(cls, end: Any) -> Awaited:
        return cls((end._name_to_put(), id(end)), end._await_to_put, end._ready_to_put, end._note_wait_to_put)

    def note_wait(self) -> None:
        """Reports the length of the wait; may raise a warning about a wait for an unused end."""
        self.note(time.monotonic() - self.began)


class _Waits:
    """The coroutines that wait in one loop. The object exists while there are any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.hub = _core.WakeHub.of_this_process()
        self._awaited_ends: dict[Awaited, None] = {}
        # : Waiting coroutines by key: the name that the hub reports, or the id of the end that may be closed. Other
        # threads also test if a key is present.
        self._found: dict[bytes | int, set[Awaited]] = {}
        loop.add_reader(self.hub.fileno(), self._take)
        self._timer = loop.call_later(SLICE_S, self._poll)

    def add(self, awaited: Awaited) -> None:
        self._awaited_ends[awaited] = None
        for key in awaited.keys:
            self._found.setdefault(key, set()).add(awaited)

    def remove(self, awaited: Awaited) -> None:
        del self._awaited_ends[awaited]
        for key in awaited.keys:
            found = self._found[key]
            found.discard(awaited)
            if not found:
                del self._found[key]
        if not self._awaited_ends and not self.loop.is_closed():
            self.loop.call_soon(self._rest)  # most coroutines wait again at once

    def tell(self, keys: Iterable[bytes | int] | None) -> None:
        """Wakes the coroutines that wait for these keys; None: those with a ready end. Thread-safe."""
        if keys is None or any(key in self._found for key in keys):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._wake, keys)

    def _wake(self, keys: Iterable[bytes | int] | None) -> None:
        if keys is None:
            found: Iterable[Awaited] = [each for each in self._awaited_ends if each.is_ready()]
        else:
            found = [each for key in keys for each in self._found.get(key, ())]
        for each in found:
            wake(each.woken)

    def _take(self) -> None:
        keys = self.hub.take()
        for waits in _all_hubs():
            if waits is not self:
                waits.tell(keys)
        self._wake(keys)

    def _poll(self) -> None:
        self._timer = self.loop.call_later(SLICE_S, self._poll)
        self._wake(None)
        for each in self._awaited_ends:
            try:
                each.note_wait()
            except Warning as warning:
                if not each.woken.done():
                    each.woken.set_exception(warning)

    def _rest(self) -> None:
        if self._awaited_ends or _places.get(id(self.loop)) is not self:
            return
        del _places[id(self.loop)]
        self.loop.remove_reader(self.hub.fileno())
        self._timer.cancel()
        del self.hub


#: By the id of the loop. The loop keeps the object, through its reader.
_places: weakref.WeakValueDictionary[int, _Waits] = weakref.WeakValueDictionary()


def _all_hubs() -> list[_Waits]:
    # valuerefs() is atomic, also if an entry is collected meanwhile.
    return [waits for place in _places.valuerefs() if (waits := place()) is not None]


def _enter(loop: asyncio.AbstractEventLoop) -> _Waits:
    waits = _places.get(id(loop))
    if waits is None:
        waits = _places[id(loop)] = _Waits(loop)
    return waits


async def until_usable(awaited: Awaited, seconds: float | None) -> None:
    """Blocks until the end is usable or closed, or for `seconds`. It may return earlier."""
    import asyncio

    loop = asyncio.get_running_loop()
    awaited.woken = loop.create_future()
    waits = _enter(loop)
    waits.add(awaited)  # first, so that a wake-up or a close finds it
    try:
        if awaited.ask(waits.hub):
            await asyncio.sleep(0)  # lets other coroutines run
        else:
            await until_woken(awaited.woken, seconds)
    finally:
        waits.remove(awaited)
    awaited.note_wait()


async def until_woken(woken: asyncio.Future[None], seconds: float | None) -> None:
    timer = None if seconds is None else woken.get_loop().call_later(seconds, wake, woken)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()


def wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def wake_waiting(end: object) -> None:
    """Wakes the coroutines that await an end which this process closes. Thread-safe."""
    for waits in _all_hubs():
        waits.tell((id(end),))


_core.set_close_callback(wake_waiting)
os.register_at_fork(after_in_child=_places.clear)  # the loops belong to the parent
