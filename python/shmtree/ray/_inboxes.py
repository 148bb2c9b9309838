"""The inboxes of a node. Receivers of this node, and the gateways at the homes of their pairs, call them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from typing import Any

from . import _inbox
from ._gateways import Ended, Gateways, KeeperHandle, LinkLost, Peer, until_answered
from ._handles import Terms
from ._inbox import Inbox
from ._keeper import Stored
from ._pump import Space
from ._tickets import Runs


class Inboxes:
    """All inboxes.

    Use it from one event loop. See `_node.Node` for the arguments.
    """

    def __init__(self, node: str, gateways: Gateways, keeper: KeeperHandle) -> None:
        self._node, self._gateways, self._keeper = node, gateways, keeper
        self._all: dict[int, Inbox] = {}
        self._newest: dict[int, Inbox] = {}  # by pair: the inbox for new receivers
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def restore(self, kept: Stored) -> None:
        self._add(Inbox(self._node, kept.record, kept))

    def _add(self, inbox: Inbox) -> None:
        self._all[inbox.record["number"]] = inbox
        if not inbox.is_left:
            self._newest[inbox.record["pair"]] = inbox

    def all(self) -> list[Inbox]:
        return list(self._all.values())

    async def store_all(self) -> None:
        for inbox in self.all():
            await self._store(inbox)

    async def _store(self, inbox: Inbox) -> None:
        await self._keeper.store(inbox.key, inbox.kept)

    async def open(self, pair: int, home: str, terms: Terms, token: tuple[str, int]) -> bytes:
        """Returns a handle of a receiver, which is in transit. Raises Ended if the pair no longer exists."""
        async with self._locks[pair]:
            inbox, is_new = self._newest.get(pair), False
            if inbox is None or inbox.is_left:
                record = _inbox.new_record(pair, home, random.getrandbits(62), terms)
                inbox, is_new = Inbox(self._node, record, None), True
            handle = inbox.grant()  # at once, so that a check finds a receiver in transit
            if is_new:
                self._add(inbox)
                await self._store(inbox)
            try:
                await until_answered(self._gateways, home, "attend", pair, self._node, inbox.record["number"], token)
            except Ended:
                await self._drop(inbox)
                raise
            return handle

    # Calls by the home's gateway, each about one inbox

    async def resume(self, number: int) -> tuple[int, int]:
        """Returns the generation to use in later calls, and the next ticket that the inbox expects."""
        inbox = self._of(number)
        expected = inbox.resume()
        await self._store(inbox)
        return inbox.record["generation"], expected

    async def space(self, number: int, generation: int, wait: bool) -> Space:
        return await self._of(number).space(generation, wait)

    async def land(self, number: int, generation: int, first: int, sizes: list[list[int]], *buffers: Any) -> Space:
        return await self._of(number).land(generation, first, list(zip(buffers, sizes)))

    async def received(self, number: int, tickets: Runs) -> Runs:
        return await self._of(number).received(tickets)

    async def reclaim(self, number: int, generation: int) -> list[int]:
        inbox = self._of(number)
        tickets = inbox.reclaim(generation)
        await self._store(inbox)  # before any reply: from now on, the messages are not this node's
        return tickets

    async def reclaimed(self, number: int, tickets: list[int]) -> None:
        inbox = self._of(number)
        inbox.reclaimed(tickets)
        await self._store(inbox)

    async def over(self, number: int, peers: tuple[Peer, ...]) -> None:
        await self._end(self._of(number), peers)

    async def forget(self, number: int) -> None:
        """Drops an inbox: the home no longer uses it."""
        if number in self._all:
            await self._drop(self._all[number])

    # Changes that no call reports.

    async def look(self) -> None:
        for inbox in self.all():
            if inbox.look():
                await self._store(inbox)
            await self._finish(inbox)

    async def check_homes(self) -> None:
        """Ends the streams whose home or pair no longer exists."""
        gone = await self._gateways.gone({inbox.record["home"] for inbox in self._all.values()})
        for inbox in self.all():
            home, is_known = inbox.record["home"], inbox.record["generation"] != 0
            if home in gone:
                inbox.reclaimed(list(inbox.record["reclaimed"]))  # they belonged to the home again
                await self._end(inbox, ((home, 0),))
                if inbox.is_left:
                    await self._drop(inbox)
            elif not is_known and inbox.is_left:  # its receiver was killed in transit, and the home does not know it
                await self._drop(inbox)
            elif is_known and inbox.record["over"] is None:
                with contextlib.suppress(LinkLost, Ended):
                    if not await self._gateways.call(home, "attends", inbox.record["pair"], inbox.record["number"]):
                        await self._end(inbox, ())

    async def _end(self, inbox: Inbox, peers: tuple[Peer, ...]) -> None:
        if inbox.record["over"] is None:
            inbox.record["over"] = peers
            await self._store(inbox)
        await self._finish(inbox)

    def _of(self, number: int) -> Inbox:
        if number not in self._all:
            raise Ended
        return self._all[number]

    async def _finish(self, inbox: Inbox) -> None:
        if inbox.finish():
            await self._store(inbox)

    async def _drop(self, inbox: Inbox) -> None:
        self._all.pop(inbox.record["number"], None)
        if self._newest.get(inbox.record["pair"]) is inbox:
            del self._newest[inbox.record["pair"]]
        inbox.finish()
        inbox.close()
        await self._keeper.store(inbox.key, None)
