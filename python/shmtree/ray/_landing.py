"""Puts messages of other nodes into a channel: each exactly once, and those of an origin in order, despite crashes.

An *origin* is a channel on another node from which messages are moved. Its tickets count from 0 without a gap, so the
next ticket of each origin says which messages have landed. These words are in shared memory, and survive the process
that lands messages:

    epoch      the process that lands: the one that opened the table last
    applied    number of counted puts (`Channel.counted`) that `next` includes
    origin     journal: the origin of the put in progress,
    then         and the origin's next ticket after this put
    next[n]    next ticket of each origin

Order of stores: origin | then | the put, which counts itself with the store that publishes it | next[origin] := then |
applied := applied + 1. If the process dies before the put, `counted` equals `applied`, and the journal is ignored. If
it dies after the put, `counted` is one more, and the journal says what has landed. No other process counts puts of the
channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import _core
from .._ipc.channel import Sender
from ..errors import CorruptMessage

_EPOCH, _APPLIED, _ORIGIN, _THEN, _NEXT = 0, 1, 2, 3, 4
ORIGINS = 1020
WORDS = _NEXT + ORIGINS


class Gap(Exception):
    """Messages before this one have not landed."""


class Superseded(Exception):
    """Another process lands messages here now."""


class Landing:
    """Puts messages of other nodes into one channel. Use it from one thread.

    Args:
        channel: The channel; no other process may land messages in it.
        table: The words, zero at first.
    """

    def __init__(self, channel: _core.Channel, table: Any) -> None:
        self.channel = channel
        self.sender: Sender[Any] = Sender._of(channel)
        channel.count_puts()
        words: Any = np.asarray(table)
        self._table = memoryview(words).cast("B").cast("q")
        self._epoch = self._table[_EPOCH] = self._table[_EPOCH] + 1
        self._apply()
        self._landed_before = channel.stats()["put"]
        self._settled_before = False  # True if all messages that earlier processes landed have been received
        self._unreceived: dict[int, dict[int, int]] = {}  # by origin: ticket there, ticket here

    def next_ticket(self, origin: int) -> int:
        return self._table[_NEXT + origin]

    def land(self, origin: int, ticket: int, frame: Any) -> None:
        """Puts a message unless it has landed already. Raises queue.Full if there is no space now."""
        table = self._table
        if table[_EPOCH] != self._epoch:
            raise Superseded(
                f"process {self._epoch} was replaced by process {table[_EPOCH]}, which writes to this channel"
            )
        if self.channel.counted != table[_APPLIED]:  # a put that raised, but took effect
            self._apply()
        expected = table[_NEXT + origin]
        if ticket < expected:
            return
        if ticket > expected:
            raise Gap(f"message {ticket} of origin {origin} arrived before message {expected}")
        table[_ORIGIN] = origin
        table[_THEN] = ticket + 1
        here = self.sender.put_frame(frame, timeout=0)
        table[_NEXT + origin] = ticket + 1
        table[_APPLIED] += 1
        self._unreceived.setdefault(origin, {})[ticket] = here

    def put(self, frame: Any) -> None:
        """Puts a message of this process itself, which is origin 0."""
        self.land(0, self.next_ticket(0), frame)
        self._unreceived.pop(0, None)

    def received(self, origin: int, tickets: Iterable[int]) -> list[int]:
        """Returns the received tickets among the given ones, which are in ascending order."""
        waiting = self._unreceived.setdefault(origin, {})
        landed = self.next_ticket(origin)
        head, unacked = self.settled()
        if head >= self._landed_before and not unacked:
            self._settled_before = True
        found = []
        for ticket in tickets:
            here = waiting.get(ticket)
            if here is not None and here >= head:
                break  # later messages are further back
            if here not in unacked if here is not None else ticket < landed and self._settled_before:
                waiting.pop(ticket, None)
                found.append(ticket)
        return found

    def settled(self) -> tuple[int, set[int]]:
        """Returns a ticket and a set: messages below the ticket were received, except those in the set."""
        stats = self.channel.stats()  # a taken message is counted before the head moves
        return stats["received"], set(self.channel.unacked()) if stats["taken"] + stats["returned"] else set()

    def forget(self, origin: int) -> None:
        self._unreceived.pop(origin, None)

    def open(self) -> None:
        """Attaches as a sender, which is the initial state."""
        if self.sender.closed:
            self.sender = Sender._of(self.channel)

    def close(self) -> None:
        """Detaches as a sender. The stream ends if no other sender is attached."""
        self.sender.close()

    def others_send(self, own: int) -> bool:
        """Returns True if more than `own` processes are attached as senders."""
        return bool(self.channel.stats()["senders_attached"] > own)

    def _apply(self) -> None:
        table = self._table
        counted = self.channel.counted
        if counted == table[_APPLIED]:
            return
        if counted != table[_APPLIED] + 1 or not 0 <= table[_ORIGIN] < ORIGINS:
            raise CorruptMessage(
                f"the channel counts {counted} messages that arrived, but the table counts {table[_APPLIED]}"
            )
        table[_NEXT + table[_ORIGIN]] = table[_THEN]
        table[_APPLIED] = counted
