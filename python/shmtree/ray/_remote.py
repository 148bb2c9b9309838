"""The ends on this node of pairs that have their home on other nodes: an outbox for senders, an inbox for receivers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from . import _inbox, _outbox
from ._feed import Feed
from ._gateways import Ended, Gateways, KeeperHandle, LinkLost, Peer, until_answered
from ._handles import Terms
from ._inbox import Inbox
from ._keeper import Key, Stored
from ._outbox import Outbox
from ._puller import Puller
from ._tickets import Runs

_PAUSE_S = 0.02

Box = Inbox | Outbox


class Remote:
    """All outboxes and inboxes of a node.

    Use it from one event loop. See `_node.Node` for the arguments; `run` starts a coroutine.
    """

    def __init__(self, node: str, gateways: Gateways, keeper: KeeperHandle, run: Callable[[Any], None]) -> None:
        self._node, self._gateways, self._keeper, self._run = node, gateways, keeper, run
        self._boxes: dict[int, Box] = {}
        self._newest: dict[tuple[str, int], Box] = {}  # by kind and pair: those for new ends
        self._ended: dict[int, tuple[Peer, ...]] = {}  # by pair: its receivers that were killed
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def restore(self, kind: str, kept: Stored) -> None:
        self._add(Inbox(self._node, kept.record, kept) if kind == "in" else Outbox(self._node, kept.record, kept))

    def _add(self, box: Box) -> None:
        self._boxes[box.record["number"]] = box
        if not box.is_over:
            self._newest[box.kind, box.record["pair"]] = box
        if isinstance(box, Inbox) and box.record["is_known"]:
            self._run(self._receive(box))

    def stored(self) -> Iterator[tuple[Key, Stored]]:
        """Yields all state that the keeper needs."""
        yield from ((each.key, each.kept) for each in self._boxes.values())

    # Calls by processes of this node

    async def open_sender(self, pair: int, home: str, terms: Terms, token: tuple[str, int]) -> bytes:
        """Returns a handle of a sender, which is in transit. Raises Ended if the pair no longer exists."""
        record = _outbox.new_record(pair, home, random.getrandbits(62), terms)
        return await self._open("out", record, token, Outbox)

    async def open_receiver(self, pair: int, home: str, terms: Terms, token: tuple[str, int]) -> bytes:
        record = _inbox.new_record(pair, home, random.getrandbits(62), terms)
        return await self._open("in", record, token, Inbox)

    async def _open(self, kind: str, record: dict[str, Any], token: tuple[str, int], make: Callable[..., Box]) -> bytes:
        pair, home = record["pair"], record["home"]
        async with self._locks[pair]:
            box = self._newest.get((kind, pair))
            if box is None or box.is_over or not box.record["is_known"]:
                box = make(self._node, record, None)
            handle = box.grant()  # at once, so that a check finds an end in transit
            if not box.record["is_known"]:
                self._add(box)
                await self._store(box)
            try:
                await until_answered(self._gateways, home, "join", pair, self._node, kind, box.record["number"], token)
            except Ended:
                await self._drop(box)
                raise
            if not box.record["is_known"]:
                box.record["is_known"] = True
                await self._store(box)
                self._add(box)
            return handle

    def why(self, pair: int) -> tuple[Peer, ...]:
        """Returns the killed receivers of a remote pair."""
        return self._ended.get(pair, ())

    def trouble(self, pair: int) -> str:
        """Returns the reason why the outbox of a remote pair could not send the last time, if it is known."""
        box = self._newest.get(("out", pair))
        return box.feed.trouble if isinstance(box, Outbox) else ""

    # Calls by the homes of pairs

    def knows(self, number: int) -> bool:
        return number in self._boxes

    def feed(self, number: int) -> Feed | None:
        box = self._boxes.get(number)
        return box.feed if isinstance(box, Outbox) else None

    async def leave(self, number: int, acked: Runs, peers: tuple[Peer, ...]) -> None:
        """Drops an outbox: its stream has ended, or no receiver is left and `peers` were killed."""
        box = self._boxes.get(number)
        if isinstance(box, Outbox):
            box.feed.acknowledge(acked)
            self._ended[box.record["pair"]] = peers
            await self._drop(box)

    # Inboxes

    async def _receive(self, inbox: Inbox) -> None:
        record = inbox.record
        puller = Puller(inbox, self._gateways, record["home"], record["pair"], record["number"])
        if not inbox.is_over:
            with contextlib.suppress(Ended):  # `look` has recorded the killed processes
                record["over"] = await puller.run()
                await self._store(inbox)
        while not inbox.finish():
            await asyncio.sleep(_PAUSE_S)
        await puller.leave(puller.received(), record["gone"] or ())
        await self._drop(inbox)

    # Changes that no call reports.

    async def look(self) -> None:
        for box in list(self._boxes.values()):
            if isinstance(box, Inbox) and box.look():
                await self._store(box)

    async def check_homes(self, silent_s: float) -> None:
        """Ends each outbox if its home or pair no longer exists. Inboxes detect this by their own calls."""
        outboxes = [each for each in self._boxes.values() if isinstance(each, Outbox)]
        gone = await self._gateways.gone({each.record["home"] for each in outboxes})
        for each in outboxes:
            number, home = each.record["number"], each.record["home"]
            if home in gone:
                await self.leave(number, [], ((home, 0),))
            elif each.feed.is_silent(silent_s):
                with contextlib.suppress(LinkLost, Ended):
                    if not await self._gateways.call(home, "knows", each.record["pair"], number):
                        await self.leave(number, [], ())

    def close(self) -> None:
        for box in self._boxes.values():
            box.close()

    async def _store(self, box: Box) -> None:
        await self._keeper.store(box.key, box.kept)

    async def _drop(self, box: Box) -> None:
        self._boxes.pop(box.record["number"], None)
        if self._newest.get((box.kind, box.record["pair"])) is box:
            del self._newest[box.kind, box.record["pair"]]
        box.close()
        await self._keeper.store(box.key, None)
