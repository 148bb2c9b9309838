"""Moves messages from a channel here to one on another node.

A message stays taken here, and so in shared memory, until it was received there. What this process had taken when it
was killed goes back to the channel, and the process after it moves that again; what had landed is known there by its
ticket (`_landing`). A ticket is sent only when all before it have landed: the first ones may be on their way back yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from .._channel import Receiver
from .._wakes import Awaited, until_usable
from ..errors import ChannelClosed, PeerDied
from . import _frames

_MOST_MESSAGES = 1024
_MOST_BYTES = 64 << 20  # in one call
_SLICE_S = 0.25
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.02, 1.0

Peer = tuple[str, int]  # a node, and a process there


class Room(NamedTuple):
    """What the other side says: the ticket that it expects, and how much there is room for after that."""

    next: int
    messages: int
    nbytes: int


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
    async def received(self, tickets: list[int]) -> list[int]:
        """Those of the tickets that were received: after some time, or as soon as one was."""

    async def over(self, peers: tuple[Peer, ...]) -> None:
        """Nothing more comes; those were killed."""


class Pump:
    """Of one event loop. `run` returns when nothing more comes, and raises Ended when nobody receives.

    Args:
        node: where this is, for those that were killed here.
    """

    def __init__(self, receiver: Receiver[Any], link: Link, node: str) -> None:
        self.receiver = receiver
        self.is_over = False  # nothing more comes: who is about to send needs another channel
        self._link = link
        self._node = node
        self._landed: dict[int, _frames.Taken] = {}  # and not yet received, by ticket
        self._any_landed = asyncio.Event()
        self._moved = asyncio.Event()

    async def run(self) -> None:
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
                room = await self._link.room(False)
                pause = _FIRST_PAUSE_S
                await self._move_all(room, killed)
                await self._link.over(tuple((self._node, pid) for pid in sorted(killed)))
                break
            except (LinkLost, MemoryError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
        self._moved.set()
        self._any_landed.set()

    async def _move_all(self, room: Room, killed: set[int]) -> None:
        """To the end of what comes."""
        while True:
            if room.messages <= 0 or room.nbytes <= 0:
                room = await self._link.room(True)
                continue
            try:
                taken = _frames.take(self.receiver, min(room.messages, _MOST_MESSAGES), min(room.nbytes, _MOST_BYTES))
            except PeerDied as error:
                killed.update(error.pids)
                continue
            except ChannelClosed:
                self.is_over = True
                return
            if taken:
                room = await self._send(taken, room)
            else:
                await until_usable(Awaited(self.receiver, receiving=True), _SLICE_S)

    async def _send(self, taken: list[_frames.Taken], room: Room) -> Room:
        """Sends those that are next; the others go back, and come again after what is to come before them."""
        known = [each for each in taken if each.ticket < room.next]
        first = room.next
        sent: list[_frames.Taken] = []
        for each in taken[len(known) :]:
            if each.ticket != first + len(sent):
                break
            sent.append(each)
        rest = taken[len(known) + len(sent) :]
        self._note_landed(known)
        try:
            if sent:
                room = await self._link.land(first, _frames.join(each.frame for each in sent))
        finally:
            self._note_landed([each for each in sent if each.ticket < room.next])
            rest = [each for each in sent if each.ticket >= room.next] + rest
            for each in rest:
                each.frame.nack()
        if rest and not sent:
            await asyncio.sleep(_FIRST_PAUSE_S)
        return room

    def _note_landed(self, taken: list[_frames.Taken]) -> None:
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
                for ticket in await self._link.received(sorted(self._landed)[:_MOST_MESSAGES]):
                    with contextlib.suppress(KeyError, ChannelClosed):
                        self._landed.pop(ticket).frame.ack()
                pause = _FIRST_PAUSE_S
            except LinkLost:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
