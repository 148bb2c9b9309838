"""The gateway's part of `Latest`: the values with this home, and a mirror of each value that is read on this node.

A mirror contains pairs of a version at the home and the value. The keeper does not store mirrors. If the gateway is
killed, readers ask its successor for a new mirror.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .._codec.frames import pack, unpack
from .._ipc.latest import Latest
from .._process import arenas
from ..errors import ChannelClosed, OutOfSharedMemory, PeerDied
from . import _frames, _handles
from ._gateways import Ended, LinkLost
from ._keeper import Key, Stored

_LONGEST_S = 2.0
_PAUSE_S = 0.2

Newest = tuple[int, _frames.Batch]


class Versions:
    """Use it from one event loop. See `_node.Node` for the arguments; `run` starts a coroutine."""

    def __init__(self, gateways: Any, keeper: Any, run: Callable[[Any], None]) -> None:
        self._gateways, self._keeper, self._run = gateways, keeper, run
        self._hosted: dict[int, tuple[bytes, Latest]] = {}
        self._packed: dict[int, Newest] = {}
        self._mirrors: dict[int, tuple[bytes, Latest]] = {}

    def restore(self, number: int, kept: Stored) -> None:
        self._hosted[number] = (kept.handle, _handles.open_latest(kept.handle, quietly=True))

    def stored(self) -> Iterator[tuple[Key, Stored]]:
        """Yields all state that the keeper needs."""
        yield from (_kept(number, handle) for number, (handle, _) in self._hosted.items())

    async def host(self, number: int) -> bytes:
        if number not in self._hosted:
            handle, latest = _new_latest()
            await self._keeper.store(*_kept(number, handle))
            self._hosted.setdefault(number, (handle, latest))
        return self._hosted[number][0]

    async def publish(self, number: int, batch: _frames.Batch) -> int:
        latest = self._of(number)
        (frame,) = _frames.split(batch)
        return await asyncio.to_thread(lambda: latest.publish(unpack(frame, copy=False, allow_pickle=True)))

    async def newest(self, number: int, newer_than: int) -> Newest | None:
        """Returns the newest version, packed once for all nodes; None if there is no newer one for some time."""
        latest = self._of(number)
        try:
            version, value = await latest.get_async(newer_than, _LONGEST_S)
        except queue.Empty:
            return None
        except (ChannelClosed, PeerDied):  # publishers have left or died; new ones may come
            await asyncio.sleep(_PAUSE_S)
            return None
        packed = self._packed.get(number)
        if packed is None or packed[0] < version:
            frame = await asyncio.to_thread(pack, value)
            packed = self._packed[number] = (version, _frames.join([frame]))
        return packed

    def _of(self, number: int) -> Latest:
        if number not in self._hosted:
            raise Ended
        return self._hosted[number][1]

    async def mirror(self, number: int, home: str) -> bytes:
        if number not in self._mirrors:
            self._mirrors[number] = _new_latest()
            self._run(self._follow(number, home, self._mirrors[number][1]))
        return self._mirrors[number][0]

    async def _follow(self, number: int, home: str, mirror: Latest) -> None:
        known = 0
        while True:
            try:
                newest = await self._gateways.call(home, "newest", number, known)
            except LinkLost:
                await asyncio.sleep(_PAUSE_S)
                continue
            except Ended:
                mirror.close()
                return
            if newest is not None:
                version, batch = newest
                if await asyncio.to_thread(_publish, mirror, version, batch):
                    known = version


def _publish(mirror: Latest, version: int, batch: _frames.Batch) -> bool:
    """Returns True if there was memory for the version."""
    (frame,) = _frames.split(batch)
    try:
        mirror.publish((version, unpack(frame, copy=False, allow_pickle=True)), timeout=_LONGEST_S)
    except (queue.Full, OutOfSharedMemory):
        return False
    return True


def _new_latest() -> tuple[bytes, Latest]:
    store, *_ = _core.make_latest(arena=arenas.default_arena())
    handle = _core.make_handle(store.arena, store.block)
    return handle, _handles.open_latest(handle, quietly=True)


def _kept(number: int, handle: bytes) -> tuple[Key, Stored]:
    return ("latest", number), Stored({"latest": number}, handle, "latest")
