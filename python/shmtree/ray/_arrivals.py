"""Puts messages of other nodes into a channel, in the order of the calls that bring them, while there is space."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from .._codec.frames import pack
from .._ipc.wake_hub import Awaited, until_usable, until_woken, wake
from ..errors import ChannelClosed, OutOfSharedMemory, PeerDied
from . import _frames
from ._landing import Gap, Landing
from ._pump import Space
from ._unread import Unread

LONGEST_S = 2.0  # longest time that a call waits here for space, or for messages to be received
FIRST_POLL_S, MAX_POLL_S = 0.001, 0.05
_SLICE_S = 0.25
_UNLIMITED_MESSAGES, _UNLIMITED_BYTES = 1 << 20, 64 << 20
_WITHOUT_REST = 256  # messages that land before other coroutines run


class Arrivals:
    """Handles the calls that bring messages for one channel. Use it from one event loop.

    Args:
        landing: Puts the messages into the channel.
        share: Returns the number of origins that share the space; 0 if no process asks for messages, so that there is
            no space.
        check: Called before messages land, and after each wait. It raises the error of the call.
        closed: Called with the error of a put when no receiver is left. It may raise the error of the call.
        max_bytes: Limit for the waiting bytes, if the channel has none; 0: no limit. One message may be larger.
    """

    def __init__(
        self,
        landing: Landing,
        share: Callable[[], int],
        check: Callable[[int], None],
        closed: Callable[[Exception], None],
        max_bytes: int = 0,
    ) -> None:
        self._landing = landing
        self._share, self._check, self._closed = share, check, closed
        self._max_bytes = max_bytes
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        # calls that arrived before their predecessors
        self._early: defaultdict[int, list[asyncio.Future[None]]] = defaultdict(list)

    def _space(self, origin: int) -> Space:
        self._check(origin)
        stats = self._landing.channel.stats()
        messages = stats["capacity"] - stats["queued"] if stats["capacity"] else _UNLIMITED_MESSAGES
        max_bytes = stats["max_bytes"] or self._max_bytes
        nbytes = max_bytes - stats["queued_bytes"] if max_bytes else _UNLIMITED_BYTES
        share, expected = self._share(), self._landing.next_ticket(origin)
        if share == 0:
            return Space(expected, 0, 0, idle=True)
        messages, nbytes = (max(-(-each // share), 0) for each in (messages, nbytes))
        return Space(expected, messages, nbytes)

    async def space(self, origin: int, wait: bool) -> Space:
        deadline = time.monotonic() + LONGEST_S * wait
        pause = FIRST_POLL_S
        while True:
            space = self._space(origin)
            if min(space.messages, space.nbytes) > 0 or time.monotonic() >= deadline:
                return space
            pause = await self._until_room(pause)

    async def _until_room(self, pause: float) -> float:
        """Waits for space, or a little longer than `pause`, because no wake-up reports free bytes.

        Returns the next value of `pause`.
        """
        sender = self._landing.sender
        if sender.closed or sender._ready_to_put():
            await asyncio.sleep(pause)
        else:
            await until_usable(Awaited.to_put(sender), _SLICE_S)
        return min(2 * pause, MAX_POLL_S)

    async def land(self, origin: int, first: int, batch: _frames.Batch) -> Space:
        """Puts the messages that have not landed yet.

        First waits for some time until their predecessors have landed.
        """
        deadline = time.monotonic() + LONGEST_S
        await self._until_next(origin, first, deadline)
        async with self._locks[origin]:
            try:
                self._check(origin)
                await self._land_all(origin, first, batch, deadline)
            finally:
                for waiting in self._early.pop(origin, ()):
                    wake(waiting)
        return self._space(origin)

    async def _until_next(self, origin: int, first: int, deadline: float) -> None:
        while self._landing.next_ticket(origin) < first and (left := deadline - time.monotonic()) > 0:
            waiting = asyncio.get_running_loop().create_future()
            self._early[origin].append(waiting)
            await until_woken(waiting, left)

    async def _land_all(self, origin: int, first: int, batch: _frames.Batch, deadline: float) -> None:
        """Lands messages until there has been no space for some time."""
        for number, frame in enumerate(_frames.split(batch)):
            pause = FIRST_POLL_S
            while True:
                try:
                    self._land_one(origin, first + number, frame)
                    break
                except Gap:
                    return
                except queue.Full:
                    pass
                except (ChannelClosed, PeerDied) as error:
                    self._closed(error)
                if time.monotonic() >= deadline:
                    return
                pause = await self._until_room(pause)
                self._check(origin)
            if number % _WITHOUT_REST == _WITHOUT_REST - 1:
                await asyncio.sleep(0)  # lets other coroutines run
                self._check(origin)

    def _land_one(self, origin: int, ticket: int, frame: Any) -> None:
        """Lands one message. If it can never be put here, lands an Unread in its place."""
        try:
            self._landing.land(origin, ticket, frame)
        except OutOfSharedMemory as error:
            stats = self._landing.channel.stats()
            if stats["queued"] + stats["taken"]:
                raise queue.Full from None
            self._land_unread(origin, ticket, frame, error)
        except ValueError as error:
            self._land_unread(origin, ticket, frame, error)

    def _land_unread(self, origin: int, ticket: int, frame: Any, error: Exception) -> None:
        reason = f"message {ticket} of another node, of {len(frame)} bytes, cannot be received here: {error}"
        self._landing.land(origin, ticket, pack(Unread(reason)))
