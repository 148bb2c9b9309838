"""Moves messages from a channel here to one on another node.

A message stays taken here, and so in shared memory, until it was received there. What this process had taken when it
was killed goes back to the channel, and the process after it moves that again; what had landed is known there by its
ticket (`_landing`). A ticket is sent only when all before it have been: the first ones may be on their way back yet.

Several calls may be under way, each with the tickets that follow those of the one before. They may come in any order:
the other side lands tickets as they follow one another, whatever call brings them. When one was lost, or has landed in
part, all that is not known to have landed goes back to the channel, and is sent again from the ticket that is next.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from .._ipc.wake_hub import Awaited, until_usable
from ..errors import ChannelClosed, PeerDied
from . import _frames
from ._sources import Source
from ._tickets import Runs, each_of, runs

_MOST_MESSAGES, _MOST_BYTES = 1024, 16 << 20  # in one call, or one message; a call takes milliseconds, however small
_MOST_CALLS, _MOST_BYTES_OF_ALL = 8, 64 << 20  # under way; what makes it more is the last
_WORTH_MESSAGES, _WORTH_BYTES = 512, 1 << 20  # that are waiting: enough for one more call while others are under way
_SLICE_S = 0.25
_LOOK_S = 0.005  # between looks whether that many are waiting
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.02, 1.0

Peer = tuple[str, int]  # a node, and a process there


class Room(NamedTuple):
    """What the other side says: the ticket that it expects, and how much there is room for after that."""

    next: int
    messages: int
    nbytes: int
    idle: bool = False  # nobody has asked for messages for some time: what has landed may go to others


class LinkLost(Exception):
    """The other side's gateway was killed, or cannot be reached now: it may answer later."""


class Ended(Exception):
    """Nobody receives on the other side, or its node is gone: `peers` were killed, if any was."""

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        super().__init__("nobody receives any more")
        self.peers = tuple(peers)


class Link(Protocol):
    """The other side of one pump. Every call may raise LinkLost or Ended, and may be repeated."""

    async def room(self, wait: bool) -> Room:
        """With `wait` after some time, or as soon as there is room."""

    async def land(self, first: int, batch: _frames.Batch) -> Room: ...
    async def received(self, tickets: Runs) -> Runs:
        """Those of the tickets that were received: after some time, or as soon as one was."""

    async def reclaim(self) -> tuple[int, list[int]]:
        """Calls that were given up do not land from here on. The ticket that is expected, and those for others.

        These have landed. They are what was told before, and not yet `reclaimed`; if that side is idle, all others that
        nobody has received, too.
        """

    async def reclaimed(self, tickets: list[int]) -> None: ...

    async def over(self, peers: tuple[Peer, ...]) -> None:
        """Nothing more comes; those were killed."""


class _Call(NamedTuple):
    """One that is under way."""

    taken: list[_frames.Taken]
    nbytes: int
    answer: asyncio.Future[Room]

    @property
    def end(self) -> int:
        """The ticket after its last."""
        return self.taken[-1].ticket + 1


class Pump:
    """Of one event loop. `run` returns when nothing more comes, and raises Ended when nobody receives.

    Args:
        source: what it moves; all that was not received there goes back to it in the end.
        node: where this is, for those that were killed here.
    """

    def __init__(self, source: Source, link: Link, node: str) -> None:
        self._source = source
        self.trouble = ""  # why nothing could be sent the last time, if that is known
        self.is_over = False  # nothing more comes: who is about to send needs another channel
        self._link = link
        self._node = node
        self._room = Room(0, 0, 0)  # as it was last said
        self._calls: list[_Call] = []  # in the order of their tickets
        self._landed: dict[int, _frames.Taken] = {}  # and not yet received, by ticket
        self._looked = 0.0  # whether the other side is idle
        self._any_landed = asyncio.Event()
        self._moved = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._run()
        except Ended:
            await self._acknowledge_last()
            self._source.drop(list(self._landed.values()), self._room.next)
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
                self._room = await self._link.room(False)
                pause = _FIRST_PAUSE_S
                await self._move_all(killed)
                await self._link.over(tuple((self._node, pid) for pid in sorted(killed)))
                break
            except (LinkLost, MemoryError) as error:
                self.trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
        self._moved.set()
        self._any_landed.set()

    async def _move_all(self, killed: set[int]) -> None:
        """To the end of what comes, or until a call was lost."""
        try:
            while not self.is_over:
                self._take_answers()
                await self._look_whether_idle()
                if self._may_send() and (not self._calls or self._is_worth_it()):
                    await self._take_and_send(killed)
                elif self._calls:
                    answers = [call.answer for call in self._calls]
                    await asyncio.wait(answers, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                elif self._room.idle and self._source.is_shared:
                    await self._take_back()
                    self._room = await self._link.room(True)
                elif self._source.room() <= 0:
                    await asyncio.sleep(_LOOK_S)
                else:
                    self._room = await self._link.room(True)
        finally:
            self._give_back()

    async def _look_whether_idle(self) -> None:
        """Now and then: while nothing is sent no answer says so."""
        now = time.monotonic()
        if self._source.is_shared and self._landed and not self._calls and now - self._looked > _SLICE_S:
            self._looked = now
            self._room = await self._link.room(False)

    async def _take_back(self) -> None:
        """What lies where nobody asks for it, for others. Nothing is under way."""
        expected, tickets = await self._link.reclaim()
        self.note_landed(self._source.landed_before(expected))
        taken = [self._landed.pop(each) for each in tickets if each in self._landed]
        self._source.drop(taken, expected if self._room.idle else None)
        if tickets:
            await self._link.reclaimed(tickets)

    def _take_answers(self) -> None:
        for call in self._calls.copy():
            if not call.answer.done():
                continue
            room = call.answer.result()
            if room.next < call.end:
                raise LinkLost
            self.trouble = ""
            if room.next >= self._room.next:
                self._room = room
            self._calls.remove(call)
            self.note_landed(call.taken)

    def _next_to_send(self) -> int:
        return max([self._room.next, *(call.end for call in self._calls)])

    def _room_left(self) -> tuple[int, int]:
        """Messages and bytes that there is room for, after those that are under way."""
        messages = self._room.messages - (self._next_to_send() - self._room.next)
        return min(messages, self._source.room()), self._room.nbytes - self._bytes_under_way()

    def _bytes_under_way(self) -> int:
        return sum(call.nbytes for call in self._calls)

    def _may_send(self) -> bool:
        return (
            min(self._room_left()) > 0
            and len(self._calls) < _MOST_CALLS
            and self._bytes_under_way() < _MOST_BYTES_OF_ALL
        )

    def _is_worth_it(self) -> bool:
        """Whether so much is waiting that it should not wait for those before it."""
        receiver = self._source.receiver
        waiting = receiver.qsize()
        return waiting >= _WORTH_MESSAGES or (waiting > 0 and receiver.stats()["queued_bytes"] >= _WORTH_BYTES)

    async def _take_and_send(self, killed: set[int]) -> None:
        messages, nbytes = self._room_left()
        taken, error = self._source.take(min(messages, _MOST_MESSAGES), min(nbytes, _MOST_BYTES))
        taken = self._without_gaps(taken, error is not None)
        if taken and not self._send(taken):
            await asyncio.sleep(_FIRST_PAUSE_S)
        if isinstance(error, PeerDied):
            killed.update(error.pids)
        elif isinstance(error, ChannelClosed) and self._source.may_get_more():
            await asyncio.sleep(_FIRST_PAUSE_S)
        elif isinstance(error, ChannelClosed):
            await self._close(bool(taken))
        elif error is None and not taken:
            await until_usable(Awaited.to_get(self._source.receiver), _SLICE_S)

    def _without_gaps(self, taken: list[_frames.Taken], also_after: bool) -> list[_frames.Taken]:
        """With something in place of each message that was consumed, and could not be read."""
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
        """Nothing more comes, but what goes back to the channel when a call is lost."""
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls])
        elif not any_taken:
            self.is_over = True

    def _send(self, taken: list[_frames.Taken]) -> bool:
        """Sends those that are next; the others go back, and come again after what is to come before them."""
        first = self._next_to_send()
        known = [each for each in taken if each.ticket < self._room.next]
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

    async def _land(self, first: int, sent: list[_frames.Taken]) -> Room:
        return await self._link.land(first, _frames.join(each.frame for each in sent))

    def _give_back(self) -> None:
        """What is not known to have landed; it may be landing yet."""
        calls, self._calls = self._calls, []
        landed = self._room.next
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
        """Of what was received there, until all was that ever comes."""
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
                pause = min(2 * pause, _MOST_PAUSE_S)

    async def _acknowledge_received(self) -> bool:
        """Whether there was any."""
        found = await self._link.received(runs(sorted(self._landed)))
        for ticket in each_of(found):
            landed = self._landed.pop(ticket, None)
            if landed is not None:
                self._source.acknowledge(landed)
        return bool(found)

    async def _acknowledge_last(self) -> None:
        """Of what was received before nobody received any more."""
        try:
            while self._landed:
                try:
                    if not await self._acknowledge_received():
                        return
                except LinkLost:
                    await asyncio.sleep(_MOST_PAUSE_S)
        except Ended:
            pass
