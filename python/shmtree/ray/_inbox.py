"""The receiving side of a pair on another node than its home."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import Any

from .._codec.frames import pack
from .._ipc.channel import Receiver
from .._process import handles as _grants
from ..errors import ChannelClosed, PeerDied
from . import _arrivals, _frames, _handles
from ._arrivals import Arrivals
from ._deaths import Deaths
from ._gateways import Ended, Peer
from ._keeper import Key, Stored
from ._landing import WORDS, Landing, Superseded
from ._pump import Space
from ._tickets import Runs, each_of, runs

_MAX_MESSAGES, _MAX_BYTES = 4096, 256 << 20  # limits of an inbox; the second applies if the pair has no limit
_IDLE_S = 1.0  # time after which messages that no process requests may go to other nodes
_ORIGIN = 1  # origin of everything from the home; the end of the stream has origin 0


class Inbox:
    """A channel on this node that only the pair's home puts into.

    Messages land in order, so it has the same tickets.

    The keeper stores `record`, with these keys:

    - pair, home, number, terms.
    - generation: generation of the home's gateway that sends here. Calls of earlier generations are refused.
    - over: None until the stream has ended; then the senders that were killed.
    - gone: None while a receiver is left; then the receivers that were killed.
    - reclaimed: tickets of messages that go to other nodes, because no process requested them here.
    """

    def __init__(self, node: str, record: dict[str, Any], kept: Stored | None) -> None:
        self._node = node
        self.record = record
        if kept is None:
            channel = _handles.new_channel(record["terms"])
            self._handle = _handles.handle_of(channel)
            self._table, table = _handles.new_table(WORDS)
        else:
            channel = _handles.open_quietly(kept.handle)
            self._handle, (self._table,) = kept.handle, kept.tables
            table = _handles.open_table(self._table)
        self._landing = Landing(channel, table)
        self._reclaiming: Receiver[Any] | None = None
        self._reclaimed: dict[int, Any] = {}  # frames, until other nodes have them
        self._taken_back = 0  # their total number
        self._asked = (0, time.monotonic())  # number of received messages, and time of the last request
        channel.leave_to_successor()
        if kept is not None:
            self._inherit()
        self._arrivals = self._new_arrivals()
        self.finish()

    @property
    def key(self) -> Key:
        return "in", self.record["pair"], self.record["number"]

    @property
    def kept(self) -> Stored:
        ends = "" if self._landing.sender.closed else "s"
        return Stored(self.record, self._handle, "channel", ends, (self._table,))

    def grant(self) -> bytes:
        """Returns a handle of a receiver, which is in transit from now on."""
        return _grants.handle_of(self._landing.channel, None, True)

    @property
    def is_left(self) -> bool:
        """True if no receiver is left here, so that a new one needs another inbox."""
        return self.record["gone"] is not None

    def resume(self) -> int:
        """Starts a new generation: only its calls are accepted. Returns the ticket that is expected."""
        self.record["generation"] += 1
        self._arrivals = self._new_arrivals()
        return self._landing.next_ticket(_ORIGIN)

    async def space(self, generation: int, wait: bool) -> Space:
        self._check(generation)
        return await self._arrivals.space(_ORIGIN, wait)

    async def land(self, generation: int, first: int, batch: _frames.Batch) -> Space:
        self._check(generation)
        return await self._arrivals.land(_ORIGIN, first, batch)

    def _check(self, generation: int) -> None:
        if generation != self.record["generation"]:
            raise Superseded(
                f"generation {generation} of the sender was replaced by generation {self.record['generation']}"
            )

    def _new_arrivals(self) -> Arrivals:
        generation = self.record["generation"]
        # `received` reports later that no receiver is left, after it has reported all received messages.
        return Arrivals(self._landing, self._is_asked, lambda _: self._check(generation), lambda _: None, _MAX_BYTES)

    def _is_asked(self) -> bool:
        """Returns True if a process waits for messages, or has requested or received one lately.

        Always returns True after the end of the stream, because the messages then stay here.
        """
        channel, now = self._landing.channel, time.monotonic()
        received = channel.stats()["received"] - self._taken_back
        if received != self._asked[0] or channel.is_awaited or self.record["over"] is not None:
            self._asked = (received, now)
        return now - max(self._asked[1], channel.asked_ns / 1e9) < _IDLE_S

    def reclaim(self, generation: int) -> list[int]:
        """Takes back the messages that no process has requested, unless a process requests them now.

        The caller must not send meanwhile.
        """
        self._check(generation)
        if not self._is_asked():
            if self._reclaiming is None:
                self._reclaiming = Receiver._of(self._landing.channel)
            while queued := self._reclaiming.qsize():
                try:
                    frames = self._reclaiming.take_frames(queued, 0.0)
                except queue.Empty:
                    break
                self._taken_back += len(frames)
                self._reclaimed.update((each.ticket or 0, each) for each in frames)
            self.record["reclaimed"] = sorted(self._reclaimed)
            self._close_reclaiming()
        return list(self.record["reclaimed"])

    def reclaimed(self, tickets: list[int]) -> None:
        """Other nodes have these messages: acks them."""
        for each in tickets:
            if (frame := self._reclaimed.pop(each, None)) is not None:
                frame.ack()
        self.record["reclaimed"] = sorted(self._reclaimed)
        self._close_reclaiming()

    def _inherit(self) -> None:
        """Takes over the messages that a killed gateway had reclaimed and recorded.

        The others return to the channel.
        """
        self._reclaiming = Receiver._of(self._landing.channel)
        frames = _handles.inherit(self._reclaiming)
        self._reclaimed = {frame.ticket: frame for frame in frames if frame.ticket in self.record["reclaimed"]}
        self._close_reclaiming()

    def _close_reclaiming(self) -> None:
        """Detaches as a receiver. The inbox is attached as one only while it reclaims messages."""
        if self._reclaiming is not None and not self._reclaimed:
            self._reclaiming.close()
            self._reclaiming = None

    async def received(self, tickets: Runs) -> Runs:
        deadline = time.monotonic() + _arrivals.LONGEST_S
        pause = _arrivals.FIRST_POLL_S
        while True:
            head, unacked = self._landing.settled()
            found = [ticket for ticket in each_of(tickets) if ticket < head and ticket not in unacked]
            if found or time.monotonic() >= deadline:
                return runs(found)
            if self.is_left:
                raise Ended(self.record["gone"])
            await asyncio.sleep(pause)
            pause = min(2 * pause, _arrivals.MAX_POLL_S)

    def look(self) -> bool:
        """Returns True once: when this call is the first to find that no receiver is left."""
        if self.is_left or self._reclaimed:
            return False
        stats = self._landing.channel.stats()
        if stats["receivers"] or stats["receivers_in_transit"]:
            return False
        killed: tuple[int, ...] = ()
        try:
            self._landing.sender._check_receivers()
        except PeerDied as died:
            killed = died.pids or (0,)
        except ChannelClosed:
            pass
        self.record["gone"] = tuple((self._node, pid) for pid in killed)
        return True

    def finish(self) -> bool:
        """Ends the stream here if it is over. Returns True if this call ended it."""
        over: tuple[Peer, ...] | None = self.record["over"]
        if over is None or self._landing.sender.closed:
            return False
        if over and self._landing.next_ticket(0) == 0:
            try:
                self._landing.put(pack(Deaths(over)))
            except queue.Full:
                return False
            except (ChannelClosed, PeerDied):
                pass  # no receiver is left that could get it
        self._landing.close()
        return True

    def close(self) -> None:
        self._landing.close()


def new_record(pair: int, home: str, number: int, terms: _handles.Terms) -> dict[str, Any]:
    """Returns a new record. It limits the number of messages, because messages that wait here cannot go to others."""
    capacity = min(terms["capacity"] or _MAX_MESSAGES, _MAX_MESSAGES)
    return {
        "pair": pair,
        "home": home,
        "number": number,
        "terms": {**terms, "kind": "pair", "capacity": capacity, "on_peer_death": "raise"},
        "generation": 0,
        "over": None,
        "gone": None,
        "reclaimed": [],
    }
