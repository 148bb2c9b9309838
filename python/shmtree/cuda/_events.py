"""CUDA events that are used again. Creating, exporting, opening and destroying one takes longer than a hand-over.

The sender of device memory records an event, and its receivers wait for that event in a stream. The sender never
destroys an event after it has sent the handle. Therefore a handle names the same event for as long as its process
lives, and a receiver can open each event once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from .. import _core
from ..errors import DeviceError
from ._driver import Driver

_MAX_OPENED = 256


class Event(NamedTuple):
    number: int  #: the driver's event
    handle: bytes  #: for other processes; empty if the event is not shared


class Pool:
    """Events of this process that are free, by device."""

    def __init__(self, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._free: dict[int, deque[Event]] = {}

    def record(self, driver: Driver, device: int, stream: int) -> Event:
        """Returns an event that completes when the work that is in the stream now is done.

        The device's context is current.
        """
        event = self._take(driver, device) or self._make(driver)
        try:
            driver.record(event.number, stream)
        except DeviceError:
            self.put_back(device, event)
            raise
        return event

    def put_back(self, device: int, event: Event) -> None:
        """Frees an event. Other processes may still be waiting for its last record in their streams."""
        self._free.setdefault(device, deque()).append(event)

    def clear(self) -> None:
        """Drops all events without destroying them."""
        self._free.clear()

    def _take(self, driver: Driver, device: int) -> Event | None:
        """Returns the event that was freed last, or None if its last record has not completed yet.

        Recording a completed event again is safe. A stream that still waits for its last record does not pass too
        early, because the work before that record is done.
        """
        free = self._free.get(device)
        try:
            event = free.pop() if free else None
        except IndexError:  # another thread has taken the event
            return None
        if event is None:
            return None
        try:
            if driver.has_passed(event.number):
                return event
        except DeviceError:
            return None  # for example, because a captured graph contains the event; it is never used again
        self._free[device].appendleft(event)
        return None

    def _make(self, driver: Driver) -> Event:
        number = driver.create_event(self._is_shared)
        try:
            return Event(number, driver.event_handle(number) if self._is_shared else b"")
        except DeviceError:
            driver.destroy_event(number)
            raise


_Sender = tuple[bytes, int]  # uuid of the arena, and identity of the process in it


class Opened:
    """Events of other processes that this process has opened, the most recently used ones last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: OrderedDict[tuple[_Sender, int, bytes], int] = OrderedDict()

    def wait(self, driver: Driver, device: int, sender: _Sender, handle: bytes, streams: Iterable[int]) -> None:
        """Makes later work in the streams wait for a sender's event. The device's context is current."""
        key = sender, device, handle
        with self._lock:  # so that no other thread closes the event meanwhile
            event = self._events.get(key)
            if event is None:
                self._close_some(driver)
                event = self._events[key] = driver.open_event(handle)
            else:
                self._events.move_to_end(key)
            for stream in streams:
                driver.wait_in_stream(stream, event)

    def clear(self) -> None:
        """Forgets all events without closing them, in a forked child."""
        self._lock = threading.Lock()
        self._events.clear()

    def _close_some(self, driver: Driver) -> None:
        """Closes the events of dead senders, and the least recently used event if there are too many."""
        dead = {sender for sender in {key[0] for key in self._events} if not _is_alive(sender)}
        closed = [key for key in self._events if key[0] in dead]
        if len(self._events) - len(closed) >= _MAX_OPENED:
            closed.append(next(key for key in self._events if key[0] not in dead))
        for key in closed:
            event = self._events.pop(key)
            with contextlib.suppress(DeviceError), driver.on(key[1]):
                driver.destroy_event(event)  # streams that wait for it keep waiting


def _is_alive(sender: _Sender) -> bool:
    uuid, identity = sender
    arena = _core.find_arena(uuid)
    return arena is not None and arena.is_alive(identity)
