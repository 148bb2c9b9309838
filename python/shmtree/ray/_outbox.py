"""The sending side of a pair on another node than its home."""

from __future__ import annotations

from typing import Any

from .._ipc.channel import Receiver
from .._process import handles as _grants
from . import _frames, _handles
from ._gateways import Gateways, Peer
from ._keeper import Key, Stored
from ._pump import Pump, Space
from ._sources import Queued
from ._tickets import Runs


class _ToHome:
    """The Link to the home of a pair."""

    def __init__(self, gateways: Gateways, home: str, pair: int, origin: int, first: int) -> None:
        self._gateways, self._home, self._whose, self._first = gateways, home, (pair, origin), first

    async def space(self, wait: bool) -> Space:
        return Space(*await self._gateways.call(self._home, "space", *self._whose, wait))

    async def land(self, first: int, batch: _frames.Batch) -> Space:
        buffers, sizes = zip(*batch)  # each buffer is an argument: small ones are sent with the call
        return Space(*await self._gateways.call(self._home, "land", *self._whose, first, sizes, *buffers))

    async def received(self, tickets: Runs) -> Runs:
        found: Runs = await self._gateways.call(self._home, "received", *self._whose, tickets)
        return found

    async def reclaim(self) -> tuple[int, list[int]]:
        return (await self.space(False)).next, []  # messages at the home are available to all that request them

    async def reclaimed(self, tickets: list[int]) -> None:
        pass

    async def over(self, peers: tuple[Peer, ...]) -> None:
        await self._gateways.call(self._home, "over", *self._whose, self._first, peers)


class Outbox:
    """One outbox. The keys of `record`: pair, home, origin, first (the first ticket), terms."""

    def __init__(self, node: str, gateways: Gateways, record: dict[str, Any], kept: Stored | None) -> None:
        if kept is None:
            # The channel ends, even if its pair does not.
            own = {"kind": "pair", "on_peer_death": "raise", "portable": True}
            self.channel = _handles.new_channel({**record["terms"], **own})
            self.handle = _handles.handle_of(self.channel)
        else:
            self.channel, self.handle = _handles.open_quietly(kept.handle), kept.handle
        self.record = record
        self.receiver: Receiver[Any] = Receiver._of(self.channel)
        link = _ToHome(gateways, record["home"], record["pair"], record["origin"], record["first"])
        self.pump = Pump(Queued(self.receiver, record["first"]), link, node)

    def grant(self) -> bytes:
        """Returns a handle of a sender, which is in transit from now on."""
        return _grants.handle_of(self.channel, None, False)

    @property
    def identity(self) -> tuple[int, int, int]:
        return self.record["pair"], self.record["origin"], self.record["first"]

    @property
    def key(self) -> Key:
        return "out", self.record["pair"], self.record["origin"]

    @property
    def kept(self) -> Stored:
        return Stored(self.record, self.handle, "channel", "r")
