"""The home side of a pair: its ring, what lands there, and whether somebody may yet send or receive."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import defaultdict
from typing import Any

from .._channel import Receiver, Terms
from .._serialize import pack
from .._wakes import Awaited, until_usable, until_woken, wake
from ..errors import ChannelClosed, PeerDied
from . import _frames, _handles
from ._deaths import Deaths
from ._keeper import Kept
from ._landing import ORIGINS, Gap, Landing
from ._pump import Ended, Peer, Room
from ._tickets import Runs, each_of, runs

_SLICE_S = 0.25
_OWN_SENDERS = 2  # the gateway and the keeper
_LONGEST_S = 2.0  # that a call waits here for room, or for messages to be received
_UNLIMITED_MESSAGES, _UNLIMITED_BYTES = 1 << 20, 64 << 20
_FIRST_LOOK_S, _MOST_LOOK_S = 0.001, 0.05
_WITHOUT_REST = 256  # messages that land before others have a turn


class Hosted:
    """One pair at its home, in the gateway there. Of one event loop.

    `record` is what the keeper has of it:
        open: ends that were given away and not yet taken, by their tokens, and who made the pair, by "s" and "r"
        taken: tokens whose end was taken before it was known to be given
        origins: the nodes that send from elsewhere, by the numbers of their outboxes; next_origin: the next number
        peers: killed senders elsewhere that no receiver was told of; told: how often some were
    """

    def __init__(self, node: str, kept: Kept | None, record: dict[str, Any]) -> None:
        self.node = node
        if kept is None:
            channel = _handles.new_channel(Terms(*record["terms"]))
            self._handle = _handles.handle_of(channel)
            self._table_handle, table = _handles.new_table()
        else:
            channel = _handles.open_quietly(kept.handle)
            self._handle, (self._table_handle,) = kept.handle, kept.tables
            table = _handles.open_table(self._table_handle)
        self.record = record
        self._landing = Landing(channel, table)
        self._receiver: Receiver[Any] | None = Receiver(channel)
        self._gone: tuple[Peer, ...] = ()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._early: defaultdict[int, list[asyncio.Future[None]]] = defaultdict(list)  # calls that overtook others

    @property
    def handle(self) -> bytes:
        return self._handle

    @property
    def kept(self) -> Kept:
        ends = "s" * self._may_send() + "r" * self._may_receive()
        return Kept(self.record, self._handle, ends, (self._table_handle,))

    def give(self, end: str, token: int) -> None:
        """An end is on its way."""
        if token in self.record["taken"]:
            self.record["taken"].remove(token)
        else:
            self.record["open"][end].add(token)

    def take(self, end: str, token: int) -> None:
        """It has come, or never will."""
        if token in self.record["open"][end]:
            self.record["open"][end].remove(token)
        else:
            self.record["taken"].add(token)

    def join(self, node: str) -> int:
        """The number of an outbox of another node."""
        origin: int = self.record["next_origin"]
        if origin >= ORIGINS:
            raise ValueError(f"{origin - 1} outboxes have sent to this pair, and there is room for no more")
        self.record["next_origin"] = origin + 1
        self.record["origins"][origin] = node
        return origin

    def leave(self, origin: int, peers: tuple[Peer, ...]) -> None:
        if self.record["origins"].pop(origin, None) is not None:
            self.record["peers"] += peers
            self._landing.forget(origin)

    def _may_send(self) -> bool:
        return bool(self.record["open"]["s"] or self.record["origins"] or self.record["peers"])

    def _may_receive(self) -> bool:
        return bool(self.record["open"]["r"])

    def settle(self) -> bool:
        """Takes part in the ends in which somebody elsewhere, or on the way, does. Whether the record has changed."""
        changed = False
        if self.record["peers"] and not self.record["open"]["s"] and not self.record["origins"]:
            changed = self._tell()
        if self._may_send():
            self._landing.open()
        else:
            self._landing.close()
        if self._may_receive() and self._receiver is None:
            self._receiver = Receiver(self._landing.channel)
        elif not self._may_receive() and self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        return changed

    def _tell(self) -> bool:
        """Ends the stream with the deaths, once nobody sends here any more. Whether it is done."""
        if self._landing.next_ticket(0) == self.record["told"]:
            if self._landing.others_send(_OWN_SENDERS):
                return False
            try:
                self._landing.put(pack(Deaths(self.record["peers"])))
            except queue.Full:
                return False
            except (ChannelClosed, PeerDied):
                pass  # nobody is there to be told
        self.record["told"] = self._landing.next_ticket(0)
        self.record["peers"] = []
        return True

    def is_unused(self) -> bool:
        """Whether nobody has the pair, or ever will."""
        if self._may_send() or self._may_receive():
            return False
        stats = self._landing.channel.stats()
        return bool(stats["senders"] == 0 and stats["receivers"] == 0)

    def _check(self) -> None:
        """Ended when nobody receives."""
        try:
            self._landing.sender._check_receivers()
        except (ChannelClosed, PeerDied) as error:
            raise self._ended(error) from None

    def _ended(self, error: Exception) -> Ended:
        self._gone += tuple((self.node, pid) for pid in getattr(error, "pids", ()))
        return Ended(self._gone)

    def _room(self, origin: int) -> Room:
        if origin not in self.record["origins"]:
            raise Ended(self._gone)
        self._check()
        stats = self._landing.channel.stats()
        messages = stats["capacity"] - stats["queued"] if stats["capacity"] else _UNLIMITED_MESSAGES
        nbytes = stats["max_bytes"] - stats["queued_bytes"] if stats["max_bytes"] else _UNLIMITED_BYTES
        share = max(len(self.record["origins"]), 1)
        messages, nbytes = (max(-(-each // share), 0) for each in (messages, nbytes))
        return Room(self._landing.next_ticket(origin), messages, nbytes)

    async def room(self, origin: int, wait: bool) -> Room:
        deadline = time.monotonic() + _LONGEST_S * wait
        look = _FIRST_LOOK_S
        while True:
            room = self._room(origin)
            if min(room.messages, room.nbytes) > 0 or time.monotonic() >= deadline:
                return room
            await self._until_room(look)
            look = min(2 * look, _MOST_LOOK_S)

    async def _until_room(self, look: float) -> None:
        """Or a little longer than `look`: nobody is told of bytes."""
        sender = self._landing.sender
        if sender._ready_to_put():
            await asyncio.sleep(look)
        else:
            await until_usable(Awaited(sender, receiving=False), _SLICE_S)

    async def land(self, origin: int, first: int, batch: _frames.Batch) -> Room:
        """Puts what has not landed yet, after what comes before it, for which it waits for some time."""
        deadline = time.monotonic() + _LONGEST_S
        await self._until_next(origin, first, deadline)
        async with self._locks[origin]:
            try:
                await self._land_all(origin, first, batch, deadline)
            finally:
                for waiting in self._early.pop(origin, ()):
                    wake(waiting)
        return self._room(origin)

    async def _until_next(self, origin: int, first: int, deadline: float) -> None:
        while self._landing.next_ticket(origin) < first and (left := deadline - time.monotonic()) > 0:
            waiting = asyncio.get_running_loop().create_future()
            self._early[origin].append(waiting)
            await until_woken(waiting, left)

    async def _land_all(self, origin: int, first: int, batch: _frames.Batch, deadline: float) -> None:
        """Until there has been no room for some time."""
        for number, frame in enumerate(_frames.split(batch)):
            look = _FIRST_LOOK_S
            while True:
                try:
                    self._landing.land(origin, first + number, frame)
                    break
                except Gap:
                    return
                except queue.Full:
                    if time.monotonic() >= deadline:
                        return
                except (ChannelClosed, PeerDied) as error:
                    raise self._ended(error) from None
                await self._until_room(look)
                look = min(2 * look, _MOST_LOOK_S)
            if number % _WITHOUT_REST == _WITHOUT_REST - 1:
                await asyncio.sleep(0)  # others are to run, too

    async def received(self, origin: int, tickets: Runs) -> Runs:
        deadline = time.monotonic() + _LONGEST_S
        look = _FIRST_LOOK_S
        while True:
            found = self._landing.received(origin, each_of(tickets))
            if found or time.monotonic() >= deadline:
                return runs(found)
            self._check()
            await asyncio.sleep(look)
            look = min(2 * look, _MOST_LOOK_S)

    def close(self) -> None:
        self._landing.close()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def new_record(terms: Terms, tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "terms": tuple(terms),
        "open": {end: {token} for end, token in tokens.items()},
        "taken": set(),
        "origins": {},
        "next_origin": 1,
        "peers": [],
        "told": 0,
    }
