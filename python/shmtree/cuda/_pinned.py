"""Arenas with pages that this process has registered with CUDA, so that a copy from a view to a device is one DMA.

When this process pins a block for the first time, the whole block is registered. It stays registered when it is
released, since blocks are reused. Before the first registration, the arena is marked: from then on, no process returns
the pages of free blocks to the system. This ends with `unpin`, or with this process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from .. import _core
from .._process import lifetime
from ..errors import DeviceError
from . import _driver


def _any_device() -> int:
    """Returns a device, one in use if possible. Memory registered for one device is registered for all."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


class _Pinned:
    def __init__(self, arena: _core.Arena, driver: _driver.Driver) -> None:
        self.arena = arena  # keeps the arena mapped while its memory is registered
        self.driver = driver
        self.device = _any_device()
        self.blocks: dict[int, int] = {}  # bytes registered by address

    def register(self, address: int, nbytes: int) -> None:
        """Registers a block. If the driver refuses, copies from it work as from any other memory."""
        known = self.blocks.get(address, 0)
        if known >= nbytes:
            return
        with contextlib.suppress(DeviceError), self.driver.on(self.device):
            if known:  # the block has grown, and a copy across the end of the registered part would fail
                del self.blocks[address]
                self.driver.unregister_host(address)
            self.driver.register_host(address, nbytes)
            self.blocks[address] = nbytes

    def end(self) -> None:
        try:
            with self.driver.on(self.device):
                while self.blocks:
                    address, _ = self.blocks.popitem()
                    with contextlib.suppress(DeviceError):
                        self.driver.unregister_host(address)
        finally:
            self.arena.set_pinned(False)


_pinned: dict[bytes, _Pinned] = {}
_lock = threading.RLock()


def pin(arena: _core.Arena) -> None:
    driver = _driver.driver()
    with driver.on(_any_device()):
        pass  # raises DeviceError if there is no device
    with _lock:
        if arena.uuid not in _pinned:
            _core.set_pin_callback(_note)
            pinned = _Pinned(arena, driver)
            # may be interrupted, and is then called again; _note waits until the arena is in _pinned
            arena.set_pinned(True)
            _pinned[arena.uuid] = pinned


def unpin(arena: _core.Arena) -> None:
    wait_for_copies()
    with _lock:
        known = _pinned.pop(arena.uuid, None)
        if known is not None:
            known.end()


def pinned_bytes(arena: _core.Arena) -> int:
    with _lock:
        known = _pinned.get(arena.uuid)
        return sum(known.blocks.values()) if known is not None else 0


def _note(uuid: bytes, address: int, nbytes: int) -> None:
    """Registers a block that this process has just pinned, if its arena is pinned."""
    with _lock:
        known = _pinned.get(uuid)
        if known is not None:
            known.register(address, nbytes)


# --- copies in progress -----------------------------------------------------------------------------------------------


class Copy:
    """Keeps an item alive while a device reads it. `event` is an event of torch."""

    def __init__(self, event: Any, item: Any) -> None:
        self.event = event
        self.item = item


_copies: set[Copy] = set()


def keep(event: Any, item: Any) -> None:
    _copies.add(Copy(event, item))


def settle() -> int:
    """Drops the items that the device has read. Returns the number of copies in progress."""
    for one in list(_copies):
        if one.event.query():  # the item stays in the list until then, so that an unpin in another thread waits for it
            _copies.discard(one)
    return len(_copies)


def wait_for_copies() -> None:
    for one in list(_copies):
        try:
            one.event.synchronize()
        finally:
            _copies.discard(one)


def _at_exit() -> None:
    wait_for_copies()
    for known in list(_pinned.values()):
        unpin(known.arena)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _pinned.clear()
    _copies.clear()


lifetime.before_end(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
