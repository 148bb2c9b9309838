"""The messages of a channel on this node that other nodes pull.

A message stays taken, and so in shared memory, until the node that pulled it acks it: it was received there. That node
gets consecutive numbers, and tells after each lost call which number it expects (`Feed.resume`). The messages from
there on are sent again. If this process is killed, its successor inherits the messages that it had taken, and learns
from `resume` which of them have landed where.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .._ipc.channel import Receiver
from .._ipc.wake_hub import Awaited, until_usable
from ..errors import ChannelClosed, PeerDied
from . import _frames
from ._gateways import LinkLost, Peer
from ._tickets import Runs, each_of, runs
from ._unread import Substitute

LONGEST_S = 2.0  # longest time that a pull waits for messages
WORTH_MESSAGES, WORTH_BYTES = 512, 1 << 20  # waiting messages that justify a call while others are in progress
_SLICE_S = 0.25
_CHECK_S = 0.005  # interval of checks for that number of messages
_PAUSE_S = 0.02


class Request(NamedTuple):
    """Arguments of a pull."""

    generation: int  # result of `resume`
    acked: Runs = ()  # numbers of messages that were received
    returned: Runs = ()  # numbers of messages that no process requests there, so that others get them
    messages: int = 0
    nbytes: int = 0  # limit of a call; a single message may be larger
    small: int = 0  # the same limit for small messages only
    is_extra: bool = False  # another call waits for the next message: this one waits for many
    is_idle: bool = False  # no process requests messages there


class Pulled(NamedTuple):
    """Answer of a pull: messages with consecutive numbers."""

    first: int
    tickets: list[int | None]  # here; None for a substitute
    sizes: list[list[int]]  # of the messages in each buffer
    buffers: list[Any]
    over: tuple[Peer, ...] | None = None  # the stream has ended: the senders that were killed


class Source:
    """A channel of this node, from which feeds take messages.

    Args:
        receiver: Returns the receiver. Raises Ended if no process receives any more.
        node: The id of this node.
        inherited: Messages that a killed process had taken, by ticket.
        is_shared: True if several nodes may pull. Otherwise, tickets are the numbers of messages.
    """

    def __init__(
        self, receiver: Callable[[], Receiver[Any]], node: str, inherited: dict[int, Any], is_shared: bool
    ) -> None:
        self.receiver, self.is_shared = receiver, is_shared
        self.inherited = inherited
        self.feeds: dict[int, Feed] = {}
        self.is_closed = False  # all messages were taken, and no sender is left
        self._node = node
        self._killed: set[int] = set()

    @property
    def killed(self) -> tuple[Peer, ...]:
        return tuple((self._node, pid) for pid in sorted(self._killed))

    @property
    def may_get_more(self) -> bool:
        """True while a node may return messages."""
        return self.is_shared and bool(self.inherited or any(each.unacked for each in self.feeds.values()))

    def feed(self, number: int) -> Feed:
        return self.feeds.setdefault(number, Feed(self))

    def take(self, request: Request) -> tuple[list[Any], Exception | None]:
        """Takes messages. Also returns the error of a message that was consumed and could not be read."""
        taken, error = _frames.take(self.receiver(), request.messages, request.nbytes, request.small)
        if isinstance(error, PeerDied):
            self._killed.update(error.pids or (0,))
        self.is_closed = isinstance(error, ChannelClosed)
        return taken, None if isinstance(error, (ChannelClosed, PeerDied)) else error

    def assign_rest(self) -> None:
        """Once all nodes have claimed what they have, gives the rest of the inherited messages to one of them.

        It is the one that has received the least, so that no node gets a message after later ones.
        """
        if self.feeds and all(each.is_resumed for each in self.feeds.values()):
            rest, self.inherited = self.inherited, {}
            if rest:
                min(self.feeds.values(), key=lambda each: each.newest).assign(rest)
        elif not self.feeds:
            self.release(self.inherited.values())
            self.inherited = {}

    def drop(self, number: int) -> None:
        feed = self.feeds.pop(number, None)
        if feed is not None:
            self.release(feed.unacked.values())
            self.assign_rest()

    def release(self, frames: Iterable[Any]) -> None:
        """Returns messages to the channel."""
        for frame in list(frames):
            self.is_closed = False
            with contextlib.suppress(ChannelClosed):
                frame.nack()


class Feed:
    """The messages that one node has pulled and not acked. Use it from one event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.unacked: dict[int, Any] = {}  # frames by number, in ascending order
        self.newest = -1  # ticket of the newest message that has landed there before `resume`
        self.heard = time.monotonic()  # time of the last call
        self.trouble = ""  # why the last answer could not be sent, if known
        self._again: list[int] = []  # numbers of messages to be sent again
        self._next = 0
        self._generation = 0

    @property
    def is_resumed(self) -> bool:
        return self._generation != 0

    def resume(self, expected: int, newest: int, held: Mapping[int, int]) -> tuple[int, Runs]:
        """Starts a new generation of calls. Returns it with the numbers of unacked messages that have landed there.

        Args:
            expected: The number that the other side expects next.
            newest: Ticket of the message before that, or -1.
            held: Tickets of the messages that landed there and were not acked, by number. Unused if the source is not
                shared.
        """
        self.newest, self.heard = newest, time.monotonic()
        inherited = self._source.inherited
        is_first, self._generation = not self.is_resumed, random.getrandbits(62) + 1
        if is_first:
            self._next = expected
        if self._source.is_shared:
            claimed = [(number, ticket) for number, ticket in held.items() if ticket in inherited]
            self.unacked.update((number, inherited.pop(ticket)) for number, ticket in claimed)
            self._source.assign_rest()
        else:
            for ticket in sorted(inherited):
                self._add(inherited.pop(ticket))
        numbers = sorted(self.unacked)
        self._again = [each for each in numbers if each >= expected]
        return self._generation, runs(each for each in numbers if each < expected)

    def assign(self, rest: dict[int, Any]) -> None:
        self._again += [self._add(rest[ticket]) for ticket in sorted(rest)]

    async def pull(self, request: Request) -> Pulled:
        """Acks messages, and returns others. Waits for them, but not indefinitely."""
        deadline = time.monotonic() + LONGEST_S
        self._check(request)
        self.acknowledge(request.acked)
        self._source.release(self.unacked.pop(each) for each in each_of(request.returned) if each in self.unacked)
        if request.is_idle:
            self._release_again()
        while True:
            self.heard = time.monotonic()
            numbers = self._take(request)
            if numbers:
                return self._pulled(numbers)
            if self._source.is_closed and not self._again and not self._source.may_get_more:
                return Pulled(self._next, [], [], [], self._source.killed)
            if request.messages == 0 or self.heard >= deadline:
                return Pulled(self._next, [], [], [])
            await self._until_more(request)
            self._check(request)

    def _check(self, request: Request) -> None:
        if request.generation != self._generation:
            raise LinkLost

    async def _until_more(self, request: Request) -> None:
        if self._source.is_closed or self._source.inherited:
            await asyncio.sleep(_PAUSE_S)
        elif request.is_extra:
            await asyncio.sleep(_CHECK_S)
        else:
            await until_usable(Awaited.to_get(self._source.receiver()), _SLICE_S)

    def _take(self, request: Request) -> list[int]:
        numbers: list[int] = []
        size = 0
        while self._again and len(numbers) < request.messages and size < request.nbytes:
            numbers.append(self._again.pop(0))
            size += self.unacked[numbers[-1]].nbytes
        if numbers or request.messages == 0 or self._source.inherited or (request.is_extra and not self._is_worth_it()):
            return numbers
        first = self._next
        taken, error = self._source.take(request)
        for frame in taken:
            self._add(frame)
        if error is not None:
            self._lose(f"was damaged there, and is lost: {error}")
        return list(range(first, self._next))

    def _is_worth_it(self) -> bool:
        receiver = self._source.receiver()
        waiting = receiver.qsize()
        return waiting >= WORTH_MESSAGES or (waiting > 0 and receiver.stats()["queued_bytes"] >= WORTH_BYTES)

    def _add(self, frame: Any) -> int:
        """Gives a message its number, and returns it."""
        number = self._next
        if not self._source.is_shared:
            number = frame.ticket
            while self._next < number:
                self._lose("was damaged there, and is lost")
        elif not frame.portable:
            frame.ack()
            return self._lose("has what cannot leave the node that its pair is on, and is lost")
        self.unacked[number] = frame
        self._next = max(self._next, number + 1)
        return number

    def _lose(self, reason: str) -> int:
        self.unacked[self._next] = Substitute(f"message {self._next} of another node {reason}")
        self._next += 1
        return self._next - 1

    def _pulled(self, numbers: list[int]) -> Pulled:
        frames = [self.unacked[each] for each in numbers]
        batch = _frames.join(frames)
        tickets = [each.ticket for each in frames]
        return Pulled(numbers[0], tickets, [sizes for _, sizes in batch], [buffer for buffer, _ in batch])

    def acknowledge(self, numbers: Runs) -> None:
        frames = [self.unacked.pop(each) for each in each_of(numbers) if each in self.unacked]
        with contextlib.suppress(ChannelClosed):
            for frame in frames:
                frame.ack()

    def is_silent(self, seconds: float) -> bool:
        """Returns True if no call was in progress for `seconds`, and counts them anew."""
        now = time.monotonic()
        if now - self.heard < seconds:
            return False
        self.heard = now
        return True

    def _release_again(self) -> None:
        """Gives messages that must be sent again to others."""
        if self._again:
            self._next = self._again[0]
            self._source.release(self.unacked.pop(each) for each in self._again)
            self._again = []
