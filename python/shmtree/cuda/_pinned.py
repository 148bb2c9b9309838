"""Arenas whose pages this process registered with CUDA, so that a copy from a view to a device is one DMA.

Registered is each block that this process takes hold of, whole, when it first does so; it stays registered when it is
let go of, since blocks are used again. Before the first, the arena is told: from then on no process gives the pages of
free blocks back to the system. That ends with `unpin`, or with this process.
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
    """What is registered with one is registered for all: one that is in use, if there is."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


class _Pinned:
    def __init__(self, arena: _core.Arena, driver: _driver.Driver) -> None:
        self.arena = arena  # kept: what is registered must stay mapped
        self.driver = driver
        self.device = _any_device()
        self.blocks: dict[int, int] = {}  # bytes registered by address

    def register(self, address: int, nbytes: int) -> None:
        """From what the driver refuses, copies are made as from any other memory."""
        known = self.blocks.get(address, 0)
        if known >= nbytes:
            return
        with contextlib.suppress(DeviceError), self.driver.on(self.device):
            if known:  # the block has grown; copies over the end of what is registered are errors
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
        pass  # is there one?
    with _lock:
        if arena.uuid not in _pinned:
            _core.set_pin_callback(_note)
            made = _Pinned(arena, driver)
            arena.set_pinned(True)  # may be interrupted, and is then asked for again; until it is noted, _note waits
            _pinned[arena.uuid] = made


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
    """This process has taken hold of a block in an arena that it pinned."""
    with _lock:
        known = _pinned.get(uuid)
        if known is not None:
            known.register(address, nbytes)


# --- copies that are under way ----------------------------------------------------------------------------------------


class Copy:
    """What a device is reading, kept until it has. `event` is one of torch."""

    def __init__(self, event: Any, item: Any) -> None:
        self.event = event
        self.item = item


_copies: set[Copy] = set()


def keep(event: Any, item: Any) -> None:
    _copies.add(Copy(event, item))


def settle() -> int:
    """Lets go of what has been read; how many copies are still under way."""
    for one in list(_copies):
        if one.event.query():  # until then it stays, for an unpin in another thread to wait for
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
