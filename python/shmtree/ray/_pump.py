"""Moves messages from a channel on this node to one on another node.

A message stays taken on this node, and so in shared memory, until it is received there. If this process is killed, the
messages that it had taken return to the channel, and the next process moves them again. The other side recognises by
the ticket what has landed (`_landing`). A ticket is sent only after all earlier ones, which may still be about to
return to the channel.

Several calls may be in progress, each with the tickets after those of the previous one. They may arrive in any order:
the other side lands tickets in sequence. If a call was lost or has landed in part, all messages return to the channel,
except those that are known to have landed. They are sent again from the next expected ticket.
"""

from __future__ import annotations

import asyncio
import operator
import time
from typing import NamedTuple, Protocol

from .._ipc.wake_hub import Awaited, until_usable
from ..errors import ChannelClosed, PeerDied
from . import _frames
from ._gateways import Ended, LinkLost, Peer
from ._sources import Source
from ._tickets import Runs, each_of, runs

# limits of one call (a single message may be larger); even a small call takes milliseconds
_MAX_MESSAGES, _MAX_BYTES = 1024, 16 << 20
_MAX_CALLS, _MAX_BYTES_OF_ALL = 8, 64 << 20  # limits of all calls in progress; the last call may exceed the second
_WORTH_MESSAGES, _WORTH_BYTES = 512, 1 << 20  # waiting messages that justify another call while others are in progress
_SLICE_S = 0.25
_CHECK_S = 0.005  # interval of checks for that number of messages
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0


class Space(NamedTuple):
    """Answer of the other side: the next ticket that it expects, and its space from that ticket on."""

    next: int
    messages: int
    nbytes: int
    idle: bool = False  # no process has requested messages for some time: those that have landed may go to others


class Link(Protocol):
    """The other side of one pump. Every call may raise LinkLost or Ended, and may be repeated."""

    async def space(self, wait: bool) -> Space:
        """Returns the space on the other side. With `wait`, blocks until there is some, but not indefinitely."""

    async def land(self, first: int, batch: _frames.Batch) -> Space: ...
    async def received(self, tickets: Runs) -> Runs:
        """Returns the given tickets that were received. Blocks until there is one, but not indefinitely."""

    async def reclaim(self) -> tuple[int, list[int]]:
        """Makes the other side refuse calls that were cancelled. Returns the next ticket that it expects, and the
        tickets of messages that go to other nodes.

        Those messages have landed on the other side. They are the ones that it has already reported and that are not
        yet `reclaimed`. If no process there requests messages, it adds all others that were not received.
        """

    async def reclaimed(self, tickets: list[int]) -> None: ...

    async def over(self, peers: tuple[Peer, ...]) -> None:
        """Reports the end of the stream, and the killed senders."""


class _Call(NamedTuple):
    """A call in progress."""

    taken: list[_frames.Taken]
    nbytes: int
    answer: asyncio.Future[Space]

    @property
    def end(self) -> int:
        """The ticket after its last one."""
        return self.taken[-1].ticket + 1


class Pump:
    """Moves the messages of one source. Use it from one event loop.

    `run` returns at the end of the stream, and raises Ended when no receiver is left.

    Args:
        source: The messages. When `run` ends, messages that were not received on the other side return to the source.
        node: The id of this node, which the report of killed senders contains.
    """

    def __init__(self, source: Source, link: Link, node: str) -> None:
        self._source = source
        self.trouble = ""  # why the last attempt to send failed, if known
        self.is_over = False  # the stream has ended: a new sender needs another channel
        self._link = link
        self._node = node
        self._space = Space(0, 0, 0)  # the last answer
        self._calls: list[_Call] = []  # in the order of their tickets
        self._landed: dict[int, _frames.Taken] = {}  # not yet received, by ticket
        self._looked = 0.0  # time of the last check for an idle other side
        self._any_landed = asyncio.Event()
        self._moved = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._run()
        except Ended:
            await self._acknowledge_last()
            self._source.drop(list(self._landed.values()), self._space.next)
            raise

    async def _run(self) -> None:
        acks = asyncio.ensure_future(self._acknowledge())
        moves = asyncio.ensure_future(self._move())
        try:
            await asyncio.wait((acks, moves), return_when=asyncio.FIRST_EXCEPTION)
            for each in (moves, acks):
                if each.done():
                    each.result()
        finally:
            for each in (acks, moves):
                each.cancel()
            await asyncio.gather(acks, moves, return_exceptions=True)

    async def _move(self) -> None:
        killed: set[int] = set()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if self._source.is_shared:
                    await self._take_back()
                self._space = await self._link.space(False)
                pause = _FIRST_PAUSE_S
                await self._move_all(killed)
                await self._link.over(tuple((self._node, pid) for pid in sorted(killed)))
                break
            except (LinkLost, MemoryError) as error:
                self.trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
        self._moved.set()
        self._any_landed.set()

    async def _move_all(self, killed: set[int]) -> None:
        """Moves messages until the end of the stream, or until a call is lost."""
        try:
            while not self.is_over:
                self._take_answers()
                await self._check_if_idle()
                if self._may_send() and (not self._calls or self._is_worth_it()):
                    await self._take_and_send(killed)
                elif self._calls:
                    answers = [call.answer for call in self._calls]
                    await asyncio.wait(answers, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                elif self._space.idle and self._source.is_shared:
                    await self._take_back()
                    self._space = await self._link.space(True)
                elif self._source.space() <= 0:
                    await asyncio.sleep(_CHECK_S)
                else:
                    self._space = await self._link.space(True)
        finally:
            self._give_back()

    async def _check_if_idle(self) -> None:
        """Asks periodically if the other side is idle, because no answers arrive while nothing is sent."""
        now = time.monotonic()
        if self._source.is_shared and self._landed and not self._calls and now - self._looked > _SLICE_S:
            self._looked = now
            self._space = await self._link.space(False)

    async def _take_back(self) -> None:
        """Takes back the messages that no process requests there, so that other nodes get them.

        Call it while no call to the other side is in progress.
        """
        expected, tickets = await self._link.reclaim()
        self.note_landed(self._source.landed_before(expected))
        taken = [self._landed.pop(each) for each in tickets if each in self._landed]
        self._source.drop(taken, expected if self._space.idle else None)
        if tickets:
            await self._link.reclaimed(tickets)

    def _take_answers(self) -> None:
        for call in self._calls.copy():
            if not call.answer.done():
                continue
            space = call.answer.result()
            if space.next < call.end:
                raise LinkLost
            self.trouble = ""
            if space.next >= self._space.next:
                self._space = space
            self._calls.remove(call)
            self.note_landed(call.taken)

    def _next_to_send(self) -> int:
        return max([self._space.next, *(call.end for call in self._calls)])

    def _room_left(self) -> tuple[int, int]:
        """Returns the number of messages and bytes for which there is space after the calls in progress."""
        messages = self._space.messages - (self._next_to_send() - self._space.next)
        return min(messages, self._source.space()), self._space.nbytes - self._bytes_in_flight()

    def _bytes_in_flight(self) -> int:
        return sum(call.nbytes for call in self._calls)

    def _may_send(self) -> bool:
        return (
            min(self._room_left()) > 0 and len(self._calls) < _MAX_CALLS and self._bytes_in_flight() < _MAX_BYTES_OF_ALL
        )

    def _is_worth_it(self) -> bool:
        """Returns True if enough messages are waiting to send them before the earlier calls have returned."""
        receiver = self._source.receiver
        waiting = receiver.qsize()
        return waiting >= _WORTH_MESSAGES or (waiting > 0 and receiver.stats()["queued_bytes"] >= _WORTH_BYTES)

    async def _take_and_send(self, killed: set[int]) -> None:
        messages, nbytes = self._room_left()
        taken, error = self._source.take(min(messages, _MAX_MESSAGES), min(nbytes, _MAX_BYTES))
        taken = self._without_gaps(taken, error is not None)
        if taken and not self._send(taken):
            await asyncio.sleep(_FIRST_PAUSE_S)
        if isinstance(error, PeerDied):
            killed.update(error.pids or (0,))
        elif isinstance(error, ChannelClosed) and self._source.may_get_more():
            await asyncio.sleep(_FIRST_PAUSE_S)
        elif isinstance(error, ChannelClosed):
            await self._close(bool(taken))
        elif error is None and not taken:
            await until_usable(Awaited.to_get(self._source.receiver), _SLICE_S)

    def _without_gaps(self, taken: list[_frames.Taken], also_after: bool) -> list[_frames.Taken]:
        """Inserts a substitute for each message that was consumed and could not be read."""
        whole: list[_frames.Taken] = []
        expected = self._next_to_send()

        def fill(end: int | None) -> None:
            nonlocal expected
            while (end is None or expected < end) and (lost := self._source.instead_of(expected)) is not None:
                whole.append(lost)
                expected += 1

        for each in sorted(taken, key=operator.attrgetter("ticket")):
            fill(each.ticket)
            whole.append(each)
            expected = max(expected, each.ticket + 1)
        if also_after:
            fill(None)
        return whole

    async def _close(self, any_taken: bool) -> None:
        """Ends the stream, except for messages that return to the channel when a call is lost."""
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls])
        elif not any_taken:
            self.is_over = True

    def _send(self, taken: list[_frames.Taken]) -> bool:
        """Sends the messages with the next tickets.

        The other messages return to the channel, and are taken again after their predecessors.
        """
        first = self._next_to_send()
        known = [each for each in taken if each.ticket < self._space.next]
        sent: list[_frames.Taken] = []
        for each in taken[len(known) :]:
            if each.ticket != first + len(sent):
                break
            sent.append(each)
        self._source.give_back(taken[len(known) + len(sent) :])
        self.note_landed(known)
        if sent:
            answer = asyncio.ensure_future(self._land(first, sent))
            self._calls.append(_Call(sent, sum(each.frame.nbytes for each in sent), answer))
        return bool(sent or known)

    async def _land(self, first: int, sent: list[_frames.Taken]) -> Space:
        return await self._link.land(first, _frames.join(each.frame for each in sent))

    def _give_back(self) -> None:
        """Returns messages to the channel that are not known to have landed; they may still be landing."""
        calls, self._calls = self._calls, []
        landed = self._space.next
        for call in calls:
            if not call.answer.done():
                call.answer.cancel()
            elif not call.answer.cancelled() and call.answer.exception() is None:
                landed = max(landed, call.answer.result().next)
        for call in calls:
            self.note_landed([each for each in call.taken if each.ticket < landed])
            self._source.give_back([each for each in call.taken if each.ticket >= landed])

    def note_landed(self, taken: list[_frames.Taken]) -> None:
        self._landed.update((each.ticket, each) for each in taken)
        if taken:
            self._any_landed.set()

    async def _acknowledge(self) -> None:
        """Acks messages that were received on the other side, until all have been."""
        pause = _FIRST_PAUSE_S
        while True:
            await self._any_landed.wait()
            if not self._landed:
                if self._moved.is_set():
                    return
                self._any_landed.clear()
                continue
            try:
                await self._acknowledge_received()
                pause = _FIRST_PAUSE_S
            except LinkLost:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)

    async def _acknowledge_received(self) -> bool:
        """Acks received messages. Returns True if there were any."""
        found = await self._link.received(runs(sorted(self._landed)))
        for ticket in each_of(found):
            landed = self._landed.pop(ticket, None)
            if landed is not None:
                self._source.acknowledge(landed)
        return bool(found)

    async def _acknowledge_last(self) -> None:
        """Acks the messages that were received before the last receiver left."""
        try:
            while self._landed:
                try:
                    if not await self._acknowledge_received():
                        return
                except LinkLost:
                    await asyncio.sleep(_MAX_PAUSE_S)
        except Ended:
            pass
