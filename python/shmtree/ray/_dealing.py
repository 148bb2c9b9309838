"""Sends one part of a pair's messages to the inbox of another node. Runs at the home of the pair.

A message stays taken from the ring until it is received there. If this process is killed, the keeper inherits the
messages that it had taken, and no other receiver gets them. The journal records which of them go to which inbox, and
the inbox knows which have landed. Only messages that were taken and not yet in the journal return to the ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .._ipc.channel import Receiver
from . import _frames, _handles
from ._gateways import Ended, Gateways, LinkLost, Peer
from ._keeper import Key, Stored
from ._pump import Pump, Space
from ._sources import JOURNAL_WORDS, Journal, MessageShare
from ._tickets import Runs

_PAUSE_S = 0.2


class _ToInbox:
    """The Link to one inbox."""

    def __init__(self, gateways: Gateways, node: str, number: int) -> None:
        self._gateways, self._node, self._number = gateways, node, number
        self._generation = 0

    async def resume(self) -> int:
        """Starts a new generation, so that the inbox ignores earlier calls. Returns the ticket that it expects."""
        while True:
            try:
                self._generation, expected = await self._call("resume")
            except LinkLost:
                await asyncio.sleep(_PAUSE_S)
            else:
                return int(expected)

    async def space(self, wait: bool) -> Space:
        return Space(*await self._call("space", self._generation, wait))

    async def land(self, first: int, batch: _frames.Batch) -> Space:
        buffers, sizes = zip(*batch)
        return Space(*await self._call("land", self._generation, first, sizes, *buffers))

    async def received(self, tickets: Runs) -> Runs:
        found: Runs = await self._call("received", tickets)
        return found

    async def reclaim(self) -> tuple[int, list[int]]:
        expected = await self.resume()
        return expected, list(await self._call("reclaim", self._generation))

    async def reclaimed(self, tickets: list[int]) -> None:
        await self._call("reclaimed", tickets)

    async def over(self, peers: tuple[Peer, ...]) -> None:
        await self._call("over", peers)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._gateways.call(self._node, "inbox", method, self._number, *arguments)


class Dealing:
    """The messages for one inbox. The keys of `record`: pair, node, number.

    Args:
        ring: A handle of the ring.
        inherited: Messages that a killed process had taken from the ring, by ticket. Those for this inbox are removed.
    """

    def __init__(
        self,
        gateways: Gateways,
        record: dict[str, Any],
        ring: bytes,
        inherited: dict[int, Any],
        kept: Stored | None,
    ) -> None:
        self.record, self._ring = record, ring
        if kept is None:
            self._table, table = _handles.new_table(JOURNAL_WORDS)
        else:
            (self._table,) = kept.tables
            table = _handles.open_table(self._table)
        self._journal = Journal(table)
        numbers = self._journal.numbers()
        self._assigned = {numbers[ticket]: inherited.pop(ticket) for ticket in list(inherited) if ticket in numbers}
        self._link = _ToInbox(gateways, record["node"], record["number"])
        self._source: MessageShare | None = None

    @property
    def key(self) -> Key:
        return "deal", self.record["pair"], self.record["number"]

    @property
    def kept(self) -> Stored:
        return Stored(self.record, self._ring, "channel", "", (self._table,))

    @property
    def holds(self) -> bool:
        """True while the gateway has taken messages from the ring that the inbox's node has not received yet."""
        return bool(self._assigned) or (self._source is not None and self._source.holds)

    async def run(self, receiver: Receiver[Any], home: str, may_get_more: Callable[[], bool]) -> None:
        """Returns at the end of the stream. Raises Ended once no process receives from that inbox any more.

        `may_get_more`: see `Source`.
        """
        try:
            expected = await self._link.resume()
        except Ended:
            end = max(self._assigned, default=-1) + 1
            source = MessageShare(receiver, self._journal, self._assigned, end, may_get_more)
            source.drop(source.landed)
            raise
        self._source = source = MessageShare(receiver, self._journal, self._assigned, expected, may_get_more)
        self._assigned = {}
        pump = Pump(source, self._link, home)
        pump.note_landed(source.landed)
        await pump.run()
