"""What a process that is being started with spawn or forkserver inherits: for each arena a descriptor and a slot.

The slot makes the child take part from the moment its arguments are pickled. It lives as long as its lock is open
anywhere, so the copy of the lock that stays here is closed as soon as the child has been started, lest the death of a
child that never got as far as taking it over goes unseen.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from multiprocessing import reduction
from typing import Any

from . import _core

# Stands in a pickle: the arena's descriptor, the lock's descriptor, the slot.
Inheritance = tuple[Any, Any, int]


class Passenger:
    """A slot reserved in one arena for one process being started."""

    def __init__(self, arena: _core.Arena) -> None:
        self.arena = arena
        self.identity, self._lock_fd = arena.reserve_slot()
        self.inheritance: Inheritance = (reduction.DupFd(arena.fd), reduction.DupFd(self._lock_fd), self.identity)

    def started(self, pid: int) -> None:
        self.arena.note_started(self.identity, pid)
        self.drop()

    def abandon(self) -> None:
        self.arena.abandon_slot(self.identity, self._lock_fd)

    def drop(self) -> None:
        os.close(self._lock_fd)


# No fork comes between the making of a lock and its entry here. A signal handler may fork within, so it is recursive.
_no_fork = threading.RLock()
_launches: dict[int, tuple[weakref.ref[Any], int, dict[bytes, Passenger]]] = {}  # with the thread that starts it
_adopted: set[tuple[int, int]] = set()


def passenger(popen: Any, arena: _core.Arena) -> Passenger:
    """The slot in `arena` of the process that is being started; one for each, however many ends it is given."""
    sweep()
    key = id(popen)
    if key not in _launches:
        _launches[key] = (weakref.ref(popen, lambda _: _forget(key)), threading.get_ident(), {})
        _core.want_idle(True)
    passengers = _launches[key][2]
    if arena.uuid not in passengers:
        with _no_fork:
            passengers[arena.uuid] = Passenger(arena)
    return passengers[arena.uuid]


def sweep() -> None:
    """Closes what was kept for processes that have been started by now, and takes it back from starts that failed."""
    for key, (reference, thread, passengers) in list(_launches.items()):
        popen = reference()
        if popen is None:
            continue  # _forget() is about to be called
        pid = getattr(popen, "pid", None)
        if pid is None and _is_at_work(thread, popen):
            continue
        if _launches.pop(key, None) is None:
            continue
        for each in passengers.values():
            each.abandon() if pid is None else each.started(pid)
    if not _launches:
        _core.want_idle(False)


def _is_at_work(thread: int, popen: Any) -> bool:
    """Whether that thread is in the start of a process. If not, this one failed, though an exception may keep it."""
    functions = [getattr(cls, name, None) for cls in type(popen).__mro__ for name in ("__init__", "_launch")]
    starting = {getattr(each, "__code__", None) for each in functions}
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code in starting:
            return True
        frame = frame.f_back
    return False


def _forget(key: int) -> None:
    """The process was never started, or has been forgotten by its parent."""
    for each in _launches.pop(key, (None, 0, {}))[2].values():
        each.abandon()


def after_fork() -> None:
    """In a forked child: the locks of its siblings are not its business."""
    for _, _, passengers in _launches.values():
        for each in passengers.values():
            each.drop()
    _launches.clear()
    _core.want_idle(False)


def adopt(handle: bytes, inheritance: Inheritance | None) -> tuple[_core.Arena, int, int, str, int]:
    """Opens a handle in the process that it was made for."""
    if inheritance is None:
        return _core.open_handle(handle)
    arena, lock, identity = inheritance
    descriptors = (arena.detach(), lock.detach())
    if descriptors in _adopted:
        return _core.open_handle(handle)
    _adopted.add(descriptors)
    return _core.open_handle(handle, *descriptors, identity)


_core.set_idle_callback(sweep)
os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release)
