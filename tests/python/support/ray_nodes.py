"""Gateways and keepers of several nodes in one process and loop, without Ray."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from shmtree._ipc.channel import Receiver, Sender
from shmtree._process import handles as grants
from shmtree.errors import ChannelClosed
from shmtree.ray import _handles
from shmtree.ray._ends import new_token
from shmtree.ray._gateways import Ended, LinkLost
from shmtree.ray._keeper import Keeper
from shmtree.ray._landing import Superseded
from shmtree.ray._node import Node
from shmtree.ray._pump import Pump


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
        self._left: dict[bytes, list[Any]] = {}  # frames that killed gateways left to their keepers, by channel
        self._calling: dict[Node, list[asyncio.Task[Any]]] = {}  # running calls of each gateway
        self._random, self._loss, self._delay_s = random.Random(seed), loss, delay_s
        self._landing = self.max_landing = 0  # calls in progress that land messages

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
        """Ends a gateway as a kill does: its keeper inherits what it had reclaimed; other frames return.

        Returns once no object of the gateway is left to hold frames, so that its successor finds all of them.
        """
        node = self._nodes.pop(name)
        for inbox in node._inboxes.all():
            self._left[inbox.kept.handle] = list(inbox._reclaimed.values())
        for task in self._calling.pop(node):
            task.cancel()
        await node.stop()
        gone = weakref.ref(node)
        del node
        gc.collect()
        while gone() is not None or any(type(each) is Pump and each._node == name for each in gc.get_objects()):
            await asyncio.sleep(0.01)
            gc.collect()

    def _inherit(self, receiver: Any) -> list[Any]:
        """Returns the frames of a killed gateway. No process dies in these tests, so all returned ones were its own."""
        left = self._left.pop(_handles.handle_of(receiver._channel), [])
        returned = receiver.stats()["returned"]
        return left + (receiver.take_frames(returned, 0.0) if returned else [])

    async def kill_keeper(self, name: str) -> None:
        self._keepers[name].keeper = Keeper()

    async def call(self, node: str, method: str, *arguments: Any) -> Any:
        if node in self.dead:
            raise Ended(((node, 0),))
        if self.full and method == "land":
            raise LinkLost(self.full)
        self._landing += method == "land"
        self.max_landing = max(self.max_landing, self._landing)
        try:
            await self._travel(node)
            result = await self._ask(self._nodes[node], node, method, *arguments)
            await self._travel(node)
        finally:
            self._landing -= method == "land"
        return result

    async def _ask(self, target: Node, node: str, method: str, *arguments: Any) -> Any:
        """Returns the gateway's answer. Raises LinkLost if a test kills the gateway during the call."""
        task: Any = asyncio.current_task()
        calling = self._calling[target]
        calling.append(task)
        try:
            return await getattr(target, method)(*arguments)
        except (Superseded, Ended, ChannelClosed, asyncio.CancelledError) as error:
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
