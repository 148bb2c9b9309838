"""Calls between gateways, and to the keeper of a node, as a gateway sees them. They do not depend on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from ._keeper import Key, Stored

_PAUSE_S = 0.2

Peer = tuple[str, int]  # a node, and a process there


class LinkLost(Exception):
    """The gateway of the other side was killed, or cannot be reached now: it may answer later."""


class Ended(Exception):
    """The object of a call no longer exists, or its node is gone. `peers` are those that were killed."""

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        super().__init__("no receiver is left")
        self.peers = tuple(peers)


class Gateways(Protocol):
    """The gateways of the other nodes."""

    async def call(self, node: str, method: str, *arguments: Any) -> Any:
        """Calls a gateway. Raises LinkLost if the gateway does not answer now, and Ended if its node is gone."""

    def offer(self, buffers: list[Any]) -> list[Any]:
        """Prepares buffers of an answer for other nodes. Raises LinkLost, with the reason, if there is no memory."""

    async def fetch(self, buffers: list[Any]) -> list[Any]:
        """Returns the buffers that another gateway has offered. Raises LinkLost if they were lost."""

    async def gone(self, nodes: Iterable[str]) -> set[str]:
        """Returns the given nodes that no longer exist."""


class KeeperHandle(Protocol):
    """The keeper of this node. Each call waits while a keeper is being replaced."""

    async def identify(self) -> int: ...
    async def store(self, key: Key, kept: Stored | None) -> None: ...
    async def all(self) -> tuple[int, dict[Key, Stored]]: ...


async def until_answered(gateways: Gateways, node: str, method: str, *arguments: Any) -> Any:
    """Calls a gateway, again while it does not answer. Raises Ended if its node is gone."""
    while True:
        try:
            return await gateways.call(node, method, *arguments)
        except LinkLost:
            if await gateways.gone((node,)):  # a gateway that never called it gets no other notice
                raise Ended(((node, 0),)) from None
            await asyncio.sleep(_PAUSE_S)


def report(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "in a gateway of shmtree", "exception": error})
