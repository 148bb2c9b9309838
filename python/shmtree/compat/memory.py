"""What py-sharedmemory 1 has, and version 2's documentation describes: ``from shmtree.compat.memory import ...``.

It takes the place of ``from memory import create_shared_memory_pair, SharedMemorySender, SharedMemoryReceiver``:
``get_nowait`` returns None when there is no message, and senders have ``has_space``. Version 3 has the module name
``memory`` too, and version 4 is called ``py_sharedmemory``: for both, import `shmtree.compat.py_sharedmemory`, whose
``get_nowait`` raises ``queue.Empty`` as theirs does. All else is the same in both modules.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext
from queue import Empty
from typing import Any

from . import py_sharedmemory

__all__ = ["SharedMemoryReceiver", "SharedMemorySender", "create_shared_memory_pair"]


class SharedMemorySender(py_sharedmemory.SharedMemorySender):
    """The sending end, with `has_space`."""

    __slots__ = ()

    def has_space(self) -> bool:
        """True if a `put` would not wait for capacity."""
        capacity = self.capacity
        return capacity is None or self.stats()["queued"] < capacity


class SharedMemoryReceiver(py_sharedmemory.SharedMemoryReceiver):
    """The receiving end, whose `get_nowait` returns None when there is no message."""

    __slots__ = ()

    def get_nowait(self, *, copy: bool | None = True) -> Any:
        """Returns the next object, or None when there is none. A None that was put cannot be told from it."""
        try:
            return self.get(block=False, copy=copy)
        except Empty:
            return None


def create_shared_memory_pair(
    capacity: int | None = 0, *, ctx: BaseContext | None = None
) -> tuple[SharedMemorySender, SharedMemoryReceiver]:
    """A channel of `capacity` messages, None or 0 being unlimited.

    `ctx` is not needed and has no effect: the ends go to processes of any context.
    """
    return py_sharedmemory.make_pair(capacity, SharedMemorySender, SharedMemoryReceiver)
