"""The receiving side of a pair on another node than its home."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._codec.frames import pack
from .._ipc.channel import Receiver
from .._process import handles as _grants
from ..errors import ChannelClosed, PeerDied
from . import _handles
from ._deaths import Deaths
from ._gateways import Ended, Peer
from ._keeper import Key, Stored
from ._landing import WORDS, Landing
from ._puller import Space

MAX_MESSAGES, MAX_BYTES = 4096, 256 << 20  # limits of an inbox; the second applies if the pair has no limit
WINDOW = 8192  # maximum number of messages that have landed and were not acked
JOURNAL_WORDS = 2 * WINDOW
_IDLE_S = 1.0  # time after which messages that no process requests may go to other nodes
_HOME = 1  # origin of everything from the home; the end of the stream has origin 0


class Journal:
    """The messages of an inbox. Words in shared memory, zero at first; a pair of them per number:

        4 * (ticket at the home + 2) + state; 0: none      number

    The first word is zero while the second changes.
    """

    LANDED, RETURNED, ACKED = 0, 1, 2  # RETURNED: other nodes get the message

    def __init__(self, table: Any) -> None:
        words: Any = np.asarray(table)
        self._words = memoryview(words).cast("B").cast("q")

    def note(self, number: int, ticket: int) -> None:
        """Notes a message that is about to land; its ticket is -1 if it has none at the home."""
        at = 2 * (number % WINDOW)
        self._words[at] = 0
        self._words[at + 1] = number
        self._words[at] = 4 * (ticket + 2)

    def set_state(self, number: int, state: int) -> None:
        at = 2 * (number % WINDOW)
        if self._words[at + 1] == number:
            self._words[at] = self._words[at] & ~3 | state

    def ticket(self, number: int) -> int:
        return (self._words[2 * (number % WINDOW)] >> 2) - 2

    def tickets(self, *states: int) -> dict[int, int]:
        """Returns the tickets of the messages with these states, by number."""
        words = self._words.tolist()
        pairs = zip(words[::2], words[1::2])
        return {number: (word >> 2) - 2 for word, number in pairs if word and word & 3 in states}


class Inbox:
    """A channel on this node into which the gateway puts what it pulls from the home of a pair.

    Messages land in order, and no process puts others, so its tickets are their numbers.

    The keeper stores `record`, with these keys:

    - pair, home, number, terms.
    - is_known: True once the home knows this inbox.
    - over: None until the stream has ended; then the senders that were killed.
    - gone: None while a receiver is left; then the receivers that were killed.
    """

    kind = "in"

    def __init__(self, node: str, record: dict[str, Any], kept: Stored | None) -> None:
        self._node, self.record = node, record
        if kept is None:
            channel = _handles.new_channel(record["terms"])
            self._handle = _handles.handle_of(channel)
            made = [_handles.new_table(WORDS), _handles.new_table(JOURNAL_WORDS)]
            self._tables, tables = tuple(each[0] for each in made), [each[1] for each in made]
        else:
            channel = _handles.open_quietly(kept.handle)
            self._handle, self._tables = kept.handle, kept.tables
            tables = [_handles.open_table(each) for each in kept.tables]
        self._landing = Landing(channel, tables[0])
        self._journal = Journal(tables[1])
        self._returned: dict[int, None] = {}  # numbers of messages that the home has not taken back yet
        self._taken_back = 0  # their total number
        self._asked = (0, time.monotonic())  # number of received messages, and time of the last request
        channel.leave_to_successor()
        if kept is not None:
            self._restore()

    def _restore(self) -> None:
        """Takes the messages that a killed gateway had recorded as returned. The others return to the channel."""
        self._returned = dict.fromkeys(sorted(self._journal.tickets(Journal.RETURNED)))
        receiver = Receiver._of(self._landing.channel)
        for frame in _handles.inherit(receiver):
            if frame.ticket in self._returned:
                frame.ack()
        receiver.close()

    @property
    def key(self) -> Key:
        return self.kind, self.record["number"]

    @property
    def kept(self) -> Stored:
        ends = "" if self.sender.closed else "s"
        return Stored(self.record, self._handle, "channel", ends, self._tables)

    def grant(self) -> bytes:
        """Returns a handle of a receiver, which is in transit from now on."""
        return _grants.handle_of(self._landing.channel, None, True)

    @property
    def is_over(self) -> bool:
        """True if a new receiver needs another inbox."""
        return self.record["gone"] is not None or self.record["over"] is not None

    # See `_puller.Target`.

    @property
    def sender(self) -> Any:
        return self._landing.sender

    def expected(self) -> int:
        return self._landing.next_ticket(_HOME)

    def landed(self) -> tuple[int, dict[int, int]]:
        expected = self.expected()
        held = self._journal.tickets(Journal.LANDED, Journal.RETURNED)
        newest = self._journal.ticket(expected - 1) if expected else -1
        return newest, {number: ticket for number, ticket in held.items() if number < expected}

    def check(self) -> None:
        if self.record["gone"] is not None:
            raise Ended(self.record["gone"])

    def space(self, unacked: int) -> Space:
        if not self._is_asked():
            return Space(0, 0, is_idle=True)
        stats = self._landing.channel.stats()
        nbytes = (stats["max_bytes"] or MAX_BYTES) - stats["queued_bytes"]
        return Space(min(stats["capacity"] - stats["queued"], WINDOW - 1 - unacked), nbytes)

    def land(self, number: int, ticket: int | None, frame: Any) -> None:
        if number == self.expected():
            self._journal.note(number, -1 if ticket is None else ticket)
        self._landing.land(_HOME, number, frame)
        self._landing.forget(_HOME)

    def received(self, numbers: Iterable[int]) -> list[int]:
        head, unacked = self._landing.settled()
        before = itertools.takewhile(lambda number: number < head, numbers)
        return [each for each in before if each not in unacked and each not in self._returned]

    def acked(self, numbers: Iterable[int]) -> None:
        for each in numbers:
            self._journal.set_state(each, Journal.ACKED)
            self._returned.pop(each, None)

    def returned(self) -> list[int]:
        """Takes back the messages that no process has requested, unless a process requests them now.

        The journal says so before this process acks them: from then on, no process gets them here.
        """
        if not self._is_asked() and self._landing.channel.stats()["queued"]:
            with Receiver._of(self._landing.channel) as receiver, contextlib.suppress(queue.Empty):
                while queued := receiver.qsize():
                    frames = receiver.take_frames(queued, 0.0)
                    self._taken_back += len(frames)
                    for frame in frames:
                        number = frame.ticket or 0
                        self._journal.set_state(number, Journal.RETURNED)
                        self._returned[number] = None
                        frame.ack()
        return sorted(self._returned)

    def _is_asked(self) -> bool:
        """Returns True if a process waits for messages, or has requested or received one lately."""
        channel, now = self._landing.channel, time.monotonic()
        received = channel.stats()["received"] - self._taken_back
        if received != self._asked[0] or channel.is_awaited:
            self._asked = (received, now)
        return now - max(self._asked[1], channel.asked_ns / 1e9) < _IDLE_S

    # Changes that no call reports.

    def look(self) -> bool:
        """Returns True once: when this call is the first to find that no receiver is left."""
        if self.record["gone"] is not None:
            return False
        stats = self._landing.channel.stats()
        if stats["receivers"] or stats["receivers_in_transit"]:
            return False
        killed: tuple[int, ...] = ()
        try:
            self.sender._check_receivers()
        except PeerDied as died:
            killed = died.pids or (0,)
        except ChannelClosed:
            pass
        self.record["gone"] = tuple((self._node, pid) for pid in killed)
        return True

    def finish(self) -> bool:
        """Ends the stream here. Returns False if there is no space now for the report of deaths."""
        over: tuple[Peer, ...] = self.record["over"] or ()
        if over and self._landing.next_ticket(0) == 0 and self.record["gone"] is None:
            try:
                self._landing.put(pack(Deaths(over)))
            except queue.Full:
                return False
            except (ChannelClosed, PeerDied):
                pass  # no receiver is left that could get it
        self.close()
        return True

    def close(self) -> None:
        self._landing.close()


def new_record(pair: int, home: str, number: int, terms: _handles.Terms) -> dict[str, Any]:
    """Returns a new record. It limits the number of messages, because messages that wait here cannot go to others."""
    capacity = min(terms["capacity"] or MAX_MESSAGES, MAX_MESSAGES)
    return {
        "pair": pair,
        "home": home,
        "number": number,
        "terms": {**terms, "kind": "pair", "capacity": capacity, "on_peer_death": "raise"},
        "is_known": False,
        "over": None,
        "gone": None,
    }
