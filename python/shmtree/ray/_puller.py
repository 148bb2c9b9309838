"""Pulls messages of a channel on another node, and puts them into one on this node, in the order of their numbers.

Several pulls are in progress, so that the time of a call does not limit the rate. One of them waits for the next
message; the others wait for many. Answers may arrive in any order. After a lost call, `resume` tells the other side
which number is expected, and the messages from there on are pulled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from .._codec.frames import pack
from .._ipc.channel import Sender
from .._ipc.wake_hub import Awaited, until_usable, until_woken, wake
from ..errors import ChannelClosed, OutOfSharedMemory, PeerDied
from . import _frames
from ._feed import Pulled, Request
from ._gateways import Ended, Gateways, LinkLost, Peer
from ._tickets import Runs, each_of, runs
from ._unread import Unread

# limits of one call (a single message may be larger); even a small call takes milliseconds
_MAX_MESSAGES, _MAX_BYTES = 1024, 16 << 20
_MAX_CALLS, _MAX_BYTES_OF_ALL = 8, 64 << 20
_BUSY_MESSAGES, _BUSY_BYTES = 64, 64 << 10  # an answer with so much is followed by several calls
_SLICE_S = 0.25
_HEARTBEAT_S = 1.0
_FIRST_POLL_S, _MAX_POLL_S = 0.001, 0.05
_SPACE_POLL_S = 0.005
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_WITHOUT_REST = 256  # messages that are put before other coroutines run


class Space(NamedTuple):
    messages: int
    nbytes: int
    is_idle: bool = False  # no process requests messages


class Target(Protocol):
    """The channel on this node."""

    @property
    def sender(self) -> Sender[Any]: ...

    def expected(self) -> int:
        """Returns the number of the next message."""

    def landed(self) -> tuple[int, dict[int, int]]:
        """Returns the ticket of the newest message, and the tickets of those that may not be acked yet by number."""

    def check(self) -> None:
        """Raises Ended if no process receives here any more."""

    def space(self, unacked: int) -> Space:
        """Returns the space for messages, in addition to the given number of messages that were not acked."""

    def land(self, number: int, ticket: int | None, frame: Any) -> None:
        """Puts the message if it is the next one. Raises queue.Full if there is no space now."""

    def received(self, numbers: Iterable[int]) -> list[int]:
        """Returns the received ones among these numbers, which are in ascending order."""

    def returned(self) -> list[int]:
        """Returns numbers of messages that no process requests here, and that the other side must give to others."""

    def acked(self, numbers: Iterable[int]) -> None:
        """The other side knows that these messages were received, or has taken them back."""


class _Over(Exception):
    """The stream has ended, or its node is gone. `peers` are the processes that were killed."""

    def __init__(self, peers: tuple[Peer, ...]) -> None:
        self.peers = peers


class _Call(NamedTuple):
    """A call that is in progress, or has returned messages that have not been put yet."""

    messages: int  # what it may bring
    nbytes: int
    is_extra: bool
    answer: asyncio.Future[Pulled]


class Puller:
    """Pulls the messages of one feed. Use it from one event loop.

    Args:
        pair, number: The feed at the gateway of `node`.
    """

    def __init__(self, target: Target, gateways: Gateways, node: str, pair: int, number: int) -> None:
        self._target, self._gateways, self._node, self._feed = target, gateways, node, (pair, number)
        self._generation = 0
        self._calls: list[_Call] = []
        self._is_busy = False  # the last answer had many messages
        self._mean_bytes = 1  # size of a message in it
        self._unacked: dict[int, None] = {}  # numbers of messages that have landed, in ascending order
        self._acking: set[int] = set()  # those among them that a call in progress acks or returns
        self._landed: asyncio.Future[None] | None = None  # wakes `_acknowledge`
        self._pause = _FIRST_PAUSE_S  # before the next call after a lost one

    async def run(self) -> tuple[Peer, ...]:
        """Returns the killed senders at the end of the stream. Raises Ended once no receiver is left."""
        while True:
            try:
                await self._resume()
                await self._move_and_acknowledge()
            except (LinkLost, MemoryError):
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, _MAX_PAUSE_S)
            except _Over as over:
                return over.peers

    def received(self) -> Runs:
        """Returns the numbers of the messages that were received and not acked."""
        return runs(self._target.received(sorted({*self._unacked, *self._target.landed()[1]})))

    async def leave(self, acked: Runs, peers: tuple[Peer, ...]) -> None:
        """Acks messages, and returns all others. `peers` are receivers that were killed."""
        with contextlib.suppress(_Over):
            while True:
                try:
                    await self._resume()  # a restarted gateway learns which messages have landed here
                    await self._call("leave", acked, peers)
                    return
                except LinkLost:
                    await asyncio.sleep(_FIRST_PAUSE_S)

    async def _resume(self) -> None:
        newest, held = self._target.landed()
        self._acking.clear()
        self._generation, landed = await self._call("resume", self._target.expected(), newest, held)
        self._unacked = dict.fromkeys(each_of(landed))

    async def _move_and_acknowledge(self) -> None:
        work = [asyncio.ensure_future(each) for each in (self._move(), self._acknowledge())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in work:
                if each.done():
                    each.result()
        finally:
            tasks: list[asyncio.Future[Any]] = [*work, *(each.answer for each in self._calls)]
            self._calls = []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _move(self) -> None:
        while True:
            self._target.check()
            is_idle = self._start_calls()
            answers = [each.answer for each in self._calls if not each.answer.done()]
            if answers:
                await asyncio.wait(answers, timeout=_SLICE_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await (asyncio.sleep(_MAX_POLL_S) if is_idle else self._until_space(_MAX_POLL_S))
            while (call := self._next_answer()) is not None:
                pulled = call.answer.result()
                if pulled.over is None:
                    self._start_calls()  # the other side takes more messages while these land
                await self._land(pulled)
                self._calls.remove(call)

    def _next_answer(self) -> _Call | None:
        """Returns the call that brought the next messages, or one that brought none. Raises the error of a call."""
        expected = self._target.expected()
        for call in self._calls:
            if call.answer.done():
                pulled = call.answer.result()
                if pulled.first <= expected or not pulled.tickets:
                    return call
        if self._calls and all(each.answer.done() for each in self._calls):
            raise LinkLost  # an earlier call brought the next messages, and its answer was lost
        return None

    def _start_calls(self) -> bool:
        """Starts calls for which there is space here. Returns True if no process requests messages."""
        while True:
            space = self._space()
            if space.is_idle:
                return True
            messages = space.messages - sum(each.messages for each in self._calls)
            nbytes = space.nbytes - sum(each.nbytes for each in self._calls)
            in_flight = sum(each.nbytes for each in self._calls)
            is_extra = any(not each.is_extra and not each.answer.done() for each in self._calls)
            if min(messages, nbytes) <= 0 or (is_extra and not self._may_add(in_flight)):
                return False
            messages = min(messages, _MAX_MESSAGES, max(_MAX_BYTES // self._mean_bytes, 1))
            nbytes = min(nbytes, max(_MAX_BYTES, self._mean_bytes))
            small = _frames.TOGETHER * (8 if self._is_busy else 1)
            # A call that waits for many may take long, and the other side must hear of acks before.
            settled: tuple[list[int], list[int]] = ([], []) if is_extra else self._settled()
            work = self._pull(*settled, messages=messages, nbytes=nbytes, small=small, is_extra=is_extra)
            self._acking.update(*settled)
            self._calls.append(_Call(messages, nbytes, is_extra, asyncio.ensure_future(work)))

    def _space(self) -> Space:
        expected = self._target.expected()
        return self._target.space(expected - next(iter(self._unacked), expected))

    def _may_add(self, in_flight: int) -> bool:
        return self._is_busy and len(self._calls) < _MAX_CALLS and in_flight < _MAX_BYTES_OF_ALL

    async def _pull(self, acked: list[int], returned: list[int], **asked: Any) -> Pulled:
        self._acking.update(acked, returned)
        request = Request(self._generation, runs(acked), runs(returned), **asked)
        pulled = Pulled(*await self._call("pull", request))
        pulled = pulled._replace(buffers=await self._gateways.fetch(pulled.buffers))
        self._pause = _FIRST_PAUSE_S
        for each in (*acked, *returned):
            self._unacked.pop(each, None)
        self._acking.difference_update(acked, returned)
        self._target.acked((*acked, *returned))
        return pulled

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._gateways.call(self._node, method, *self._feed, *arguments)
        except Ended as ended:
            raise _Over(ended.peers) from None

    async def _acknowledge(self) -> None:
        """Acks received messages that no pull acks soon, and returns messages that no process requests."""
        pause, called = _FIRST_POLL_S, time.monotonic()
        while True:
            if self._unacked:
                await asyncio.sleep(pause)
            else:
                await self._until_landed()
                pause = _FIRST_POLL_S
            pause = min(2 * pause, _MAX_POLL_S)
            is_idle = self._space().is_idle and not self._calls
            is_due = is_idle and time.monotonic() - called >= _HEARTBEAT_S
            acked, returned = self._settled()
            if acked or returned or is_due:
                pulled = await self._pull(acked, returned, is_idle=is_idle)
                pause, called = _FIRST_POLL_S, time.monotonic()
                if pulled.over is not None and not self._calls:
                    raise _Over(pulled.over)

    def _settled(self) -> tuple[list[int], list[int]]:
        """Returns the messages that were received, and those that no process requests, without those of other calls."""
        acked = self._target.received(each for each in self._unacked if each not in self._acking)
        return acked, [each for each in self._target.returned() if each not in self._acking]

    async def _land(self, pulled: Pulled) -> None:
        self._target.check()
        count, nbytes = len(pulled.tickets), sum(map(sum, pulled.sizes))
        self._is_busy = count >= _BUSY_MESSAGES or nbytes >= _BUSY_BYTES
        self._mean_bytes = max(nbytes // count, 1) if count else self._mean_bytes
        frames = _frames.split(list(zip(pulled.buffers, pulled.sizes)))
        for at, (ticket, frame) in enumerate(zip(pulled.tickets, frames)):
            while not self._land_one(pulled.first + at, ticket, frame):
                await self._until_space(_SPACE_POLL_S)
                self._target.check()
            self._unacked[pulled.first + at] = None
            if at % _WITHOUT_REST == _WITHOUT_REST - 1:
                await asyncio.sleep(0)
                self._target.check()
        if self._landed is not None:
            wake(self._landed)
        if pulled.over is not None and len(self._calls) == 1:
            raise _Over(pulled.over)

    async def _until_landed(self) -> None:
        self._landed = asyncio.get_running_loop().create_future()
        await until_woken(self._landed, _SLICE_S)

    def _land_one(self, number: int, ticket: int | None, frame: Any) -> bool:
        """Returns False if there is no space now. If a message can never be put here, lands an Unread in its place."""
        try:
            self._target.land(number, ticket, frame)
        except queue.Full:
            return False
        except (ChannelClosed, PeerDied):
            self._target.check()
            return False
        except OutOfSharedMemory as error:
            stats = self._target.sender.stats()
            if stats["queued"] + stats["taken"]:
                return False
            return self._land_unread(number, ticket, frame, error)
        except ValueError as error:
            return self._land_unread(number, ticket, frame, error)
        return True

    def _land_unread(self, number: int, ticket: int | None, frame: Any, error: Exception) -> bool:
        try:
            self._target.land(number, ticket, _unread(number, frame, error))
        except (queue.Full, ChannelClosed, PeerDied, OutOfSharedMemory):
            return False
        return True

    async def _until_space(self, seconds: float) -> None:
        """Waits for space, or for `seconds`, because no wake-up reports free bytes."""
        sender = self._target.sender
        if sender.closed or sender._ready_to_put():
            await asyncio.sleep(seconds)
        else:
            await until_usable(Awaited.to_put(sender), _SLICE_S)


def _unread(number: int, frame: Any, error: Exception) -> Any:
    return pack(Unread(f"message {number} of another node, of {len(frame)} bytes, cannot be received here: {error}"))
