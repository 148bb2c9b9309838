"""Shard servers and their keepers as Ray actors, and simultaneous calls to several of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from . import _actors
from ._pump import Ended
from ._shards import Call, Key, Record, ShardKeeper, Shards

_PAUSE_S = 0.1


def server(node: str) -> Any:
    return _actors._actor(_ShardServer, f"shmtree-shards-{node}", node)


def call(node: str, method: str, *arguments: Any) -> Any:
    """Calls a shard server; see `_actors.call`."""
    return _actors.call(node, method, *arguments, of=server)


class Calls:
    """Simultaneous calls to several nodes, one call per node."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = dict(calls)
        self._in_flight = self._begin()

    def _begin(self) -> dict[str, Any]:
        if self._calls and not ray.is_initialized():
            raise Ended
        return {
            node: server(node).call.remote(method, *arguments, **options)
            for node, (method, arguments, options) in self._calls.items()
        }

    def answers(self) -> tuple[dict[str, Any], set[str]]:
        """Returns the answers by node, and the nodes that no longer exist.

        Calls killed servers again. Raises a server's error.
        """
        answers: dict[str, Any] = {}
        gone: set[str] = set()
        errors: list[BaseException] = []  # all are collected, because Ray prints errors that were not retrieved
        while self._in_flight:
            for node, reference in self._in_flight.items():
                try:
                    status, value = ray.get(reference)
                except RayTaskError as error:
                    errors.append(error.cause)
                    del self._calls[node]
                    continue
                except RayError:  # the server was killed, or its answer was lost
                    continue
                if status == "ended":
                    raise Ended(value)
                answers[node] = value
                del self._calls[node]
            if errors:
                raise errors[0] from None
            if self._calls:
                gone |= _actors._gone(self._calls)
                self._calls = {node: each for node, each in self._calls.items() if node not in gone}
                time.sleep(_PAUSE_S)
            self._in_flight = self._begin()
        return answers, gone


@ray.remote(num_cpus=0, max_concurrency=1000)
class _ShardServer:
    """The server: `_shards.Shards` as an actor, one per node and job; Ray restarts it if it is killed."""

    def __init__(self, node: str) -> None:
        self._name = node
        self._shards: Shards | None = None
        self._starting = asyncio.Lock()
        self._leaving: Any = None
        _actors.call_itself()

    async def _started(self) -> Shards:
        async with self._starting:
            if self._shards is None:
                keeper = _actors._KeeperByRay(_ShardKeeper, f"shmtree-shards-keeper-{self._name}", self._name)
                shards = Shards(self._name, _actors._ByRay(server), keeper)
                await shards.start()
                self._leaving = asyncio.ensure_future(_actors._until_job_is_over())
                self._shards = shards
        return self._shards

    async def call(self, method: str, *arguments: Any, **options: Any) -> tuple[str, Any]:
        shards = await self._started()
        try:
            return "done", await getattr(shards, method)(*arguments, **options)
        except Ended as ended:
            return "ended", ended.peers

    async def pid(self) -> int:
        await self._started()
        return os.getpid()


@ray.remote(num_cpus=0, max_concurrency=100)
class _ShardKeeper(ShardKeeper):
    """`_shards.ShardKeeper` as an actor, one per node and job."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._leaving: Any = None

    async def identify(self) -> int:
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(_actors._until_job_is_over())
        return self.number

    async def store(self, key: Key, record: Record | None) -> None:  # type: ignore[override]
        ShardKeeper.store(self, key, record)

    async def all(self) -> tuple[int, dict[Key, Record]]:  # type: ignore[override]
        return ShardKeeper.all(self)

    async def pid(self) -> int:
        return os.getpid()
