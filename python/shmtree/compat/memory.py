"""The interface of py-sharedmemory 1, also documented for version 2: ``from shmtree.compat.memory import ...``.

It replaces ``from memory import create_shared_memory_pair, SharedMemorySender, SharedMemoryReceiver``: ``get_nowait``
returns None when there is no message, and senders have ``has_space``. Version 3 also has the module name ``memory``,
and version 4 is called ``py_sharedmemory``. For both, import `shmtree.compat.py_sharedmemory`: its ``get_nowait``
raises ``queue.Empty`` as theirs does. Apart from these two calls, both modules are the same.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext
from queue import Empty
from typing import Any

from .._public import claim_names, made_by
from . import py_sharedmemory

__all__ = ["SharedMemoryReceiver", "SharedMemorySender", "create_shared_memory_pair"]


@made_by("create_shared_memory_pair()")
class SharedMemorySender(py_sharedmemory.SharedMemorySender):
    """The sending end, with `has_space`."""

    __slots__ = ()

    def has_space(self) -> bool:
        """True if a `put` would not wait for capacity."""
        capacity = self.capacity
        return capacity is None or self.stats()["queued"] < capacity


@made_by("create_shared_memory_pair()")
class SharedMemoryReceiver(py_sharedmemory.SharedMemoryReceiver):
    """The receiving end; `get_nowait` returns None when there is no message."""

    __slots__ = ()

    def get_nowait(self, *, copy: bool | None = True) -> Any:
        """Returns the next object, or None if there is none. You cannot tell this None from one that was put."""
        try:
            return self.get(block=False, copy=copy)
        except Empty:
            return None


def create_shared_memory_pair(
    capacity: int | None = 0, *, ctx: BaseContext | None = None
) -> tuple[SharedMemorySender, SharedMemoryReceiver]:
    """Makes a channel for `capacity` messages; None or 0 means no limit.

    `ctx` is not needed and has no effect: the ends go to processes of any context.
    """
    return py_sharedmemory.make_pair(capacity, SharedMemorySender, SharedMemoryReceiver)


__dir__ = claim_names(globals())
