"""What a process that is being started with spawn or forkserver inherits: descriptors of arenas, slots, parts in names.

The slot makes the child take part from the moment its arguments are pickled. It lives as long as its lock is open
anywhere, so the copy of the lock that stays here is closed as soon as the child has been started, lest the death of a
child that never got as far as taking it over goes unseen. A part in the name of what it is given is kept likewise.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from multiprocessing import reduction
from typing import Any, NamedTuple

from .. import _core

# Stands in a pickle: the arena's descriptor, the lock's descriptor, the slot; a part's descriptor, or None.
Inheritance = tuple[Any, Any, int, Any]


class Passenger:
    """A slot reserved in one arena for one process being started, and its parts in names there."""

    def __init__(self, arena: _core.Arena) -> None:
        self.arena = arena
        self.identity, self._lock_fd = arena.reserve_slot()
        self._slot = (reduction.DupFd(arena.fd), reduction.DupFd(self._lock_fd), self.identity)
        self._parts: dict[str, tuple[int, Any]] = {}  # by path: the descriptor, and what stands for it in a pickle

    def inheritance(self, name: _core.Name | None) -> Inheritance:
        """For something that is known by that name."""
        if name is not None and name.path not in self._parts:
            with _no_fork, contextlib.suppress(OSError):  # it goes without its name where there is no part to be had
                part = name.part_for_child()
                self._parts[name.path] = part, reduction.DupFd(part)
        _, part_fd = self._parts.get(name.path, (-1, None)) if name is not None else (-1, None)
        return (*self._slot, part_fd)

    def started(self, pid: int) -> None:
        self.arena.note_started(self.identity, pid)
        self.drop()

    def abandon(self) -> None:
        self.arena.abandon_slot(self.identity, self._lock_fd)
        for path, (part, _) in self._parts.items():
            _core.give_up_part(path, part)

    def drop(self) -> None:
        os.close(self._lock_fd)
        for part, _ in self._parts.values():
            os.close(part)


# No fork comes between the making of a lock and its entry here. A signal handler may fork within, so it is recursive.
_no_fork = threading.RLock()
_launches: dict[int, tuple[weakref.ref[Any], int, dict[bytes, Passenger]]] = {}  # with the thread that starts it
_adopted: set[tuple[int, ...]] = set()


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


class Adopted(NamedTuple):
    """What a handle leads to, in the process that it was made for."""

    arena: _core.Arena
    block: int
    transfer: int
    giver_pid: int
    name: _core.Name | None


def adopt(handle: bytes, inheritance: Inheritance | None) -> Adopted:
    part = -1
    if inheritance is None:
        opened = _core.open_handle(handle)
    else:
        arena_fd, lock, identity, part_fd = inheritance
        descriptors = (arena_fd.detach(), lock.detach())
        part = _first(part_fd.detach()) if part_fd is not None else -1
        if descriptors in _adopted:
            opened = _core.open_handle(handle)
        else:
            _adopted.add(descriptors)
            opened = _core.open_handle(handle, *descriptors, identity)
    arena, block, transfer, path, giver_pid = opened
    return Adopted(arena, block, transfer, giver_pid, _core.Name.join(path, arena, part))


def _first(descriptor: int) -> int:
    """-1 where it was adopted before: what is inherited once may be unpickled several times."""
    if (descriptor,) in _adopted:
        return -1
    _adopted.add((descriptor,))
    return descriptor


_core.set_idle_callback(sweep)
os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release)
