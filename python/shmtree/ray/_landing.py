"""Where messages of other nodes come into a channel: each once, those of an origin in order, whoever is killed when.

An *origin* is a channel on another node that messages are moved from. Its tickets count from 0 without a gap, so the
next ticket of each says what has landed. These words lie in shared memory, and so survive the process that lands:

    epoch      who lands: the one that opened the table last
    applied    counted puts (`Channel.counted`) that the words below tell of
    origin     journal: what the put under way is of,
    then         and the origin's next ticket when it has taken place
    next[n]    of each origin

Order of stores: origin | then | the put, which counts itself with the store that publishes it | next[origin] := then |
applied := applied + 1. Killed before the put, `counted` is `applied`, and the journal means nothing; killed after it,
`counted` is one more, and the journal says what landed. Nobody else counts puts of the channel: that is all there is.
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
    """Another process lands messages here."""


class Landing:
    """Puts what comes from elsewhere into one channel. Of one thread.

    Args:
        channel: which no other process may land in.
        table: the words, zero at first.
    """

    def __init__(self, channel: _core.Channel, table: Any) -> None:
        self.channel = channel
        self.sender: Sender[Any] = Sender(channel)
        channel.count_puts()
        words: Any = np.asarray(table)
        self._table = memoryview(words).cast("B").cast("q")
        self._epoch = self._table[_EPOCH] = self._table[_EPOCH] + 1
        self._apply()
        self._landed_before = channel.stats()["put"]
        self._settled_before = False  # whether all that landed by processes before this one was received
        self._unreceived: dict[int, dict[int, int]] = {}  # of each origin: ticket there, ticket here

    def next_ticket(self, origin: int) -> int:
        return self._table[_NEXT + origin]

    def land(self, origin: int, ticket: int, frame: Any) -> None:
        """Puts a message, unless it is there already; queue.Full when there is no room now."""
        table = self._table
        if table[_EPOCH] != self._epoch:
            raise Superseded(f"messages land here by process {self._epoch} and {table[_EPOCH]} at once")
        if self.channel.counted != table[_APPLIED]:  # a put that ended by an exception, and took place
            self._apply()
        expected = table[_NEXT + origin]
        if ticket < expected:
            return
        if ticket > expected:
            raise Gap(f"message {ticket} of origin {origin} came before {expected}")
        table[_ORIGIN] = origin
        table[_THEN] = ticket + 1
        here = self.sender.put_frame(frame, timeout=0)
        table[_NEXT + origin] = ticket + 1
        table[_APPLIED] += 1
        self._unreceived.setdefault(origin, {})[ticket] = here

    def put(self, frame: Any) -> None:
        """Puts a message of this process's own, which origin 0 stands for."""
        self.land(0, self.next_ticket(0), frame)
        self._unreceived.pop(0, None)

    def received(self, origin: int, tickets: Iterable[int]) -> list[int]:
        """Those of the tickets, in ascending order, that somebody has received."""
        waiting = self._unreceived.setdefault(origin, {})
        landed = self.next_ticket(origin)
        head, unsettled = self.settled()
        if head >= self._landed_before and not unsettled:
            self._settled_before = True
        found = []
        for ticket in tickets:
            here = waiting.get(ticket)
            if here is not None and here >= head:
                break  # what came later is further back
            if here not in unsettled if here is not None else ticket < landed and self._settled_before:
                waiting.pop(ticket, None)
                found.append(ticket)
        return found

    def settled(self) -> tuple[int, set[int]]:
        """Tickets of the channel below the first were received, but for the others."""
        stats = self.channel.stats()  # what was taken is counted before the head moves
        return stats["received"], set(self.channel.unsettled()) if stats["taken"] + stats["returned"] else set()

    def forget(self, origin: int) -> None:
        self._unreceived.pop(origin, None)

    def open(self) -> None:
        """Takes part in sending, as it does from the beginning."""
        if self.sender.closed:
            self.sender = Sender(self.channel)

    def close(self) -> None:
        """Takes part no longer: the stream ends when nobody else does."""
        self.sender.close()

    def others_send(self, own: int) -> bool:
        """Whether more than `own` processes take part in sending."""
        return bool(self.channel.stats()["senders_counting"] > own)

    def _apply(self) -> None:
        table = self._table
        counted = self.channel.counted
        if counted == table[_APPLIED]:
            return
        if counted != table[_APPLIED] + 1 or not 0 <= table[_ORIGIN] < ORIGINS:
            raise CorruptMessage(f"{counted} messages have landed, and the table knows of {table[_APPLIED]}")
        table[_NEXT + table[_ORIGIN]] = table[_THEN]
        table[_APPLIED] = counted
