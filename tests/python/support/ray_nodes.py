"""Gateways and keepers of several nodes in one process and loop, without Ray."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import random
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from shmtree._ipc.channel import Receiver, Sender
from shmtree._process import handles as grants
from shmtree.errors import ChannelClosed
from shmtree.ray import _handles
from shmtree.ray._ends import new_token
from shmtree.ray._feed import Feed
from shmtree.ray._gateways import Ended, LinkLost
from shmtree.ray._keeper import Keeper
from shmtree.ray._landing import Superseded
from shmtree.ray._node import Node


class _Keeping:
    """A keeper as gateways see it: all arguments and results are copies."""

    def __init__(self) -> None:
        self.keeper = Keeper()

    async def identify(self) -> int:
        return self.keeper.number

    async def store(self, key: Any, kept: Any) -> None:
        self.keeper.store(key, copy.deepcopy(kept))

    async def all(self) -> Any:
        return copy.deepcopy(self.keeper.all())


class Nodes:
    """Named nodes. Each request and each reply is lost with probability `loss`, and takes up to `delay_s`."""

    def __init__(self, *names: str, loss: float = 0.0, delay_s: float = 0.0, seed: int = 0) -> None:
        self.names = names
        self.dead: set[str] = set()
        self.full = ""  # reason why no message can be landed now, or ""
        self._keepers = {name: _Keeping() for name in names}
        self._nodes: dict[str, Node] = {}
        self._calling: dict[Node, list[asyncio.Task[Any]]] = {}  # running calls of each gateway
        self._random, self._loss, self._delay_s = random.Random(seed), loss, delay_s
        self.delays_s: Iterator[float] = itertools.repeat(0.0)  # of answers with messages
        self._pulling = self.max_pulling = 0  # calls in progress that pull messages

    def disturb(self, loss: float, delay_s: float) -> None:
        """Sets the loss and the delay of later messages."""
        self._loss, self._delay_s = loss, delay_s

    async def run(self, test: Callable[[Nodes], Awaitable[None]]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_handles, "inherit", self._inherit)
            for name in self.names:
                await self.start_gateway(name)
            await test(self)
            for name in list(self._nodes):
                await self.kill_gateway(name)

    async def start_gateway(self, name: str) -> None:
        node = Node(name, name, self, self._keepers[name])
        await node.start()
        self._calling[node] = []
        self._nodes[name] = node

    async def kill_gateway(self, name: str) -> None:
        """Ends a gateway as a kill does, except that its frames return to their channels.

        Returns once no object of the gateway is left to hold frames, so that its successor finds all of them.
        """
        node = self._nodes.pop(name)
        for task in self._calling.pop(node):
            task.cancel()
        await node.stop()
        gone = weakref.ref(node)
        del node
        gc.collect()
        while gone() is not None or any(type(each) is Feed and each._source._node == name for each in gc.get_objects()):
            await asyncio.sleep(0.01)
            gc.collect()

    def _inherit(self, receiver: Any) -> list[Any]:
        """Returns the frames of a killed gateway. No process dies in these tests, so all returned ones were its own."""
        returned = receiver.stats()["returned"]
        return receiver.take_frames(returned, 0.0) if returned else []

    async def kill_keeper(self, name: str) -> None:
        self._keepers[name].keeper = Keeper()

    async def call(self, node: str, method: str, *arguments: Any) -> Any:
        if node in self.dead:
            raise Ended(((node, 0),))
        is_pull = method == "pull" and arguments[-1].messages > 0
        self._pulling += is_pull
        self.max_pulling = max(self.max_pulling, self._pulling)
        try:
            await self._travel(node)
            result = await self._ask(self._nodes[node], node, method, *arguments)
            if is_pull and result.tickets:
                await asyncio.sleep(next(self.delays_s))
            await self._travel(node)
        finally:
            self._pulling -= is_pull
        return result

    async def _ask(self, target: Node, node: str, method: str, *arguments: Any) -> Any:
        """Returns the gateway's answer. Raises LinkLost if a test kills the gateway during the call."""
        task: Any = asyncio.current_task()
        calling = self._calling[target]
        calling.append(task)
        try:
            return await getattr(target, method)(*arguments)
        except (Superseded, Ended, LinkLost, ChannelClosed, asyncio.CancelledError) as error:
            if target in self._calling:
                raise error.with_traceback(None) from None  # without the frames, which refer to the gateway
            if isinstance(error, asyncio.CancelledError) and hasattr(task, "uncancel"):
                task.uncancel()
        finally:
            calling.remove(task)
            del target
        raise LinkLost

    async def _travel(self, node: str) -> None:
        if self._delay_s:
            await asyncio.sleep(self._random.uniform(0, self._delay_s))
        if node not in self._nodes or self._random.random() < self._loss:
            raise LinkLost

    def offer(self, buffers: list[Any]) -> list[Any]:
        if self.full and buffers:
            raise LinkLost(self.full)
        return [bytes(each) for each in buffers]

    async def fetch(self, buffers: list[Any]) -> list[Any]:
        return buffers

    async def gone(self, nodes: Iterable[str]) -> set[str]:
        return set(nodes) & self.dead

    def node(self, name: str) -> Node:
        return self._nodes[name]


class Hosted:
    """A pair at its home node, and senders to it from other nodes."""

    def __init__(self, nodes: Nodes, home: str, capacity: int = 8, max_bytes: int = 0) -> None:
        self._nodes, self.home = nodes, home
        self.terms = {"kind": "pair", "capacity": capacity, "max_bytes": max_bytes}
        self.number = new_token()
        self.tokens = {"s": new_token(), "r": new_token()}

    async def make(self) -> Any:
        """Returns the channel of the pair's ring."""
        handle, _ = await self._nodes.node(self.home).host(self.number, self.terms, self.tokens)
        return _handles.open_channel(handle)

    async def sender(self, node: str) -> Sender[Any]:
        token = new_token()
        await self.settle([("s", token)], [])
        handle = await self._nodes.node(node).open_sender(self.number, self.home, self.terms, ("s", token))
        with grants.open_channel(handle, None, False) as (channel, _):
            return Sender._of(channel)

    async def receiver(self, node: str, made: Any = Receiver._of) -> Any:
        token = new_token()
        await self.settle([("r", token)], [])
        handle = await self._nodes.node(node).open_receiver(self.number, self.home, self.terms, ("r", token))
        with grants.open_channel(handle, None, True) as (channel, _):
            return made(channel)

    async def settle(self, given: list[tuple[str, int]], taken: list[tuple[str, int]]) -> None:
        await self._nodes.node(self.home).settle(self.number, given, taken)

    async def let_go(self, ends: str = "sr") -> None:
        """Releases the ends that its maker has not given away, as the maker does when it closes them."""
        await self.settle([], [(end, self.tokens[end]) for end in ends])
