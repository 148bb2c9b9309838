"""Passes descriptors, slots and shares of names to a process that is being started with spawn or forkserver.

The slot makes the child a participant from the moment its arguments are pickled. The slot counts as alive while any
process has its lock file open. Therefore this process closes its copy of the lock as soon as the child has started.
Otherwise, no process would notice the death of a child that has not yet taken its slot over. A share of a name is kept
in the same way.
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

# In a pickle: the arena's descriptor, the lock's descriptor, the slot, and the descriptor of a name's share or None.
Inheritance = tuple[Any, Any, int, Any]


class Passenger:
    """A slot reserved in one arena for one process that is being started, and its shares of names there."""

    def __init__(self, arena: _core.Arena) -> None:
        self.arena = arena
        self.identity, self._lock_fd = arena.reserve_slot()
        self._slot = (reduction.DupFd(arena.fd), reduction.DupFd(self._lock_fd), self.identity)
        # By path of the name: descriptor of its share, and its pickled form.
        self._parts: dict[str, tuple[int, Any]] = {}

    def inheritance(self, name: _core.Name | None) -> Inheritance:
        """Returns the inheritance of an object with this name."""
        if name is not None and name.path not in self._parts:
            with _no_fork, contextlib.suppress(OSError):  # without a share, the object is passed without its name
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


# Prevents a fork between the creation of a lock and its registration here. Recursive, because a signal handler may fork
# meanwhile.
_no_fork = threading.RLock()
# The processes that are being started, each with the thread that starts it.
_launches: dict[int, tuple[weakref.ref[Any], int, dict[bytes, Passenger]]] = {}
_adopted: set[tuple[int, ...]] = set()


def passenger(popen: Any, arena: _core.Arena) -> Passenger:
    """Returns the slot in `arena` of the process that is being started.

    The process has one slot per arena, however many ends are passed to it.
    """
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
    """Closes descriptors that were kept for processes that have started by now; frees the slots of failed starts."""
    for key, (reference, thread, passengers) in list(_launches.items()):
        popen = reference()
        if popen is None:
            continue  # _forget() is about to run
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
    """Returns True if that thread is starting a process.

    If it returns False, the start has failed, although an exception may still refer to its Popen.
    """
    functions = [getattr(cls, name, None) for cls in type(popen).__mro__ for name in ("__init__", "_launch")]
    starting = {getattr(each, "__code__", None) for each in functions}
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code in starting:
            return True
        frame = frame.f_back
    return False


def _forget(key: int) -> None:
    """Abandons the slots of a process that was never started, or that its parent has dropped."""
    for each in _launches.pop(key, (None, 0, {}))[2].values():
        each.abandon()


def after_fork() -> None:
    """Closes, in a forked child, the locks that belong to its siblings."""
    for _, _, passengers in _launches.values():
        for each in passengers.values():
            each.drop()
    _launches.clear()
    _core.want_idle(False)


class Adopted(NamedTuple):
    """The opened handle, in the process for which it was made."""

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
    """Returns `descriptor`, or -1 if it was adopted before: an inheritance may be unpickled several times."""
    if (descriptor,) in _adopted:
        return -1
    _adopted.add((descriptor,))
    return descriptor


_core.set_idle_callback(sweep)
os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release)
