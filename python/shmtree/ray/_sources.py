"""Sources of a pump: where it takes messages from, and the tickets that it gives them.

A pump sends a sequence of consecutive tickets to one destination. In an outbox, they are the channel's own tickets,
since all its messages go to the pair's home (`Queued`). Of the messages in a pair's ring, each receiving node gets a
part. These messages are numbered anew for each node (`MessageShare`), and a journal in shared memory records which
message has which number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from .._ipc.channel import Receiver
from ..errors import ChannelClosed, PeerDied
from . import _frames
from ._frames import Taken
from ._unread import Substitute

WINDOW = 8192  # maximum number of messages that were sent to one node and not received there
JOURNAL_WORDS = 2 * WINDOW
_UNLIMITED = 1 << 20


class Source(Protocol):
    """The source of one pump."""

    receiver: Receiver[Any]
    is_shared: bool  # True if other nodes may get messages that are not received

    def space(self) -> int:
        """Returns the number of messages that may be taken, in addition to those that are not acked yet."""

    def take(self, messages: int, nbytes: int) -> tuple[list[Taken], Exception | None]:
        """Takes messages; see `_frames.take`."""

    def instead_of(self, ticket: int) -> Taken | None:
        """Returns a substitute for a message that was consumed and could not be read; else None.

        Also returns None if the message may still come.
        """

    def give_back(self, taken: list[Taken]) -> None:
        """Returns messages to the channel, which delivers them again."""

    def acknowledge(self, taken: Taken) -> None: ...
    def landed_before(self, expected: int) -> list[Taken]:
        """Returns the messages that were returned to the channel although they had landed on the other side."""

    def may_get_more(self) -> bool:
        """True while other nodes may return messages to the channel. The end of its stream does not wait for these."""

    def drop(self, taken: list[Taken], expected: int | None = None) -> None:
        """Releases messages for others.

        With `expected`, the next ticket that is sent, also releases all returned messages.
        """


class Queued:
    """All messages of a channel of which this source is the only receiver. It numbers them from `first` on."""

    is_shared = False

    def __init__(self, receiver: Receiver[Any], first: int) -> None:
        self.receiver = receiver
        self._first = first

    def space(self) -> int:
        return _UNLIMITED

    def take(self, messages: int, nbytes: int) -> tuple[list[Taken], Exception | None]:
        taken, error = _frames.take(self.receiver, messages, nbytes)
        return [Taken(self._first + each.ticket, each.frame) for each in taken], error

    def instead_of(self, ticket: int) -> Taken | None:
        channel, here = self.receiver._channel, ticket - self._first
        # checked first, because a taken message has a delivery record before it counts as received
        is_consumed = here < channel.stats()["received"]
        if not is_consumed or here in channel.unacked():
            return None
        return Taken(ticket, Substitute(f"message {ticket} of its sender's node was damaged there, and is lost"))

    def give_back(self, taken: list[Taken]) -> None:
        for each in taken:
            _give_back(each)

    def acknowledge(self, taken: Taken) -> None:
        with contextlib.suppress(ChannelClosed):
            taken.frame.ack()

    def landed_before(self, expected: int) -> list[Taken]:
        return []

    def may_get_more(self) -> bool:
        return False

    def drop(self, taken: list[Taken], expected: int | None = None) -> None:
        self.give_back(taken)


class Journal:
    """Numbers of a channel's messages. Words in shared memory, zero at first; one pair of words per number:

        ticket of the message + 1; 0: none      the number

    The first word is zero while the second changes. If a message was numbered twice, the lower number is valid: numbers
    change only to close a gap.
    """

    def __init__(self, table: Any) -> None:
        words: Any = np.asarray(table)
        self._words = memoryview(words).cast("B").cast("q")

    def note(self, number: int, ticket: int | None) -> None:
        at = 2 * (number % WINDOW)
        self._words[at] = 0
        self._words[at + 1] = number
        if ticket is not None:
            self._words[at] = ticket + 1

    def numbers(self) -> dict[int, int]:
        """Returns the numbers by ticket."""
        found: dict[int, int] = {}
        words = self._words.tolist()
        for ticket, number in zip(words[::2], words[1::2]):
            if ticket:
                found[ticket - 1] = min(number, found.get(ticket - 1, number))
        return found


class MessageShare:
    """The part of a channel's messages that goes to one node; other receivers of the channel get other messages.

    Args:
        receiver: The receiver of the channel.
        assigned: Messages that a killed process had taken for that node, by number.
        landed: The next number that the node expects. Messages with lower numbers have landed and keep their numbers.
            The others are numbered from `landed` on.
        may_get_more: See `Source`. The channel ends its stream without waiting for messages that this process has taken
            for other nodes.
    """

    is_shared = True

    def __init__(
        self,
        receiver: Receiver[Any],
        journal: Journal,
        assigned: Mapping[int, Any],
        landed: int,
        may_get_more: Callable[[], bool],
    ) -> None:
        self.receiver = receiver
        self.may_get_more = may_get_more
        self._journal = journal
        self._next = landed
        self._unacked: dict[int, None] = {}  # in ascending order
        self._again: list[Taken] = []
        self.landed = [Taken(number, assigned[number]) for number in sorted(assigned) if number < landed]
        self._unacked.update((each.ticket, None) for each in self.landed)
        for number in sorted(assigned):
            if number >= landed:
                self._again.append(self._deal(assigned[number]))
                if self._again[-1].ticket != number:
                    self._journal.note(number, None)

    @property
    def holds(self) -> bool:
        """True while this source has taken messages that the node has not received yet."""
        return bool(self._unacked)

    def space(self) -> int:
        oldest = next(iter(self._unacked), self._next)
        return WINDOW - 1 - (self._next - oldest) + len(self._again)

    def take(self, messages: int, nbytes: int) -> tuple[list[Taken], Exception | None]:
        if not self._again:
            return self._take_new(messages, nbytes)
        count = size = 0
        while count < min(messages, len(self._again)) and size < nbytes:
            size += self._again[count].frame.nbytes
            count += 1
        taken, self._again = self._again[:count], self._again[count:]
        return taken, None

    def _take_new(self, messages: int, nbytes: int) -> tuple[list[Taken], Exception | None]:
        taken, error = _frames.take(self.receiver, messages, nbytes)
        dealt = [self._deal(each.frame) for each in taken]
        if error is None or isinstance(error, (ChannelClosed, PeerDied)):
            return dealt, error
        return [*dealt, self._deal(Substitute(f"a message was consumed, and could not be read: {error}"))], None

    def _deal(self, frame: Any) -> Taken:
        number, self._next = self._next, self._next + 1
        if not frame.portable:
            local = frame
            frame = Substitute(
                f"message {local.ticket} has what cannot leave the node that its pair is on, and is lost"
            )
            local.ack()
        self._journal.note(number, frame.ticket)
        self._unacked[number] = None
        return Taken(number, frame)

    def instead_of(self, ticket: int) -> Taken | None:
        return None

    def give_back(self, taken: list[Taken]) -> None:
        self._again = sorted([*taken, *self._again], key=lambda each: each.ticket)

    def acknowledge(self, taken: Taken) -> None:
        self._unacked.pop(taken.ticket, None)
        with contextlib.suppress(ChannelClosed):
            taken.frame.ack()

    def landed_before(self, expected: int) -> list[Taken]:
        count = sum(each.ticket < expected for each in self._again)
        landed, self._again = self._again[:count], self._again[count:]
        return landed

    def drop(self, taken: list[Taken], expected: int | None = None) -> None:
        again: list[Taken] = []
        if expected is not None:
            again, self._again, self._next = self._again, [], expected
        for each in (*taken, *again):
            self._journal.note(each.ticket, None)  # first: once the message is back, another source may journal it
            self._unacked.pop(each.ticket, None)
            _give_back(each)


def _give_back(taken: Taken) -> None:
    with contextlib.suppress(ChannelClosed):
        taken.frame.nack()
