"""The gateway's part of replay buffers: it has the node's shards, and samples from them for other nodes.

For each buffer with its home on this node, it also keeps the list of all shards.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..replay import ReplayStats, Saved
from ..replay._buffer import ReplayBuffer
from . import _parts
from ._gateways import Ended, Gateways, KeeperHandle, until_answered
from ._keeper import Key, Stored
from ._shard_files import Found, Loading, Saving, folder_of

Record = dict[str, Any]
Call = tuple[str, tuple[Any, ...]]  # a method of `Shards`, and its arguments


class Shard(NamedTuple):
    """A shard on this node."""

    id: int
    home: str
    handle: bytes
    buffer: ReplayBuffer


class Shards:
    """The shards of a node. Use it from one event loop.

    Other processes call each method except `start`, and may repeat a call with the same arguments.
    """

    def __init__(self, node: str, gateways: Gateways, keeper: KeeperHandle) -> None:
        self._node, self._gateways, self._keeper = node, gateways, keeper
        self._homes: dict[int, Record] = {}  # next: number of the next shard; shards: node and handle by number
        self._here: dict[int, Shard] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def restore(self, number: int, kept: Stored) -> None:
        if kept.kind == "record":
            self._homes[number] = kept.record
        else:
            self._here[number] = Shard(**kept.record, handle=kept.handle, buffer=pickle.loads(kept.handle))

    def stored(self) -> Iterator[tuple[Key, Stored]]:
        """Yields all state that the keeper needs."""
        for number, record in self._homes.items():
            yield ("buffer", number), Stored(record)
        for number, shard in self._here.items():
            yield _stored(number, shard)

    # Calls about buffers with this home.

    async def host(self, number: int) -> None:
        if number not in self._homes:
            await self._keep_home(number, {"next": 1, "shards": {}})

    async def shards(self, number: int) -> dict[int, tuple[str, bytes]]:
        """Returns the node and the handle of each shard. Raises Ended if the buffer was shut down."""
        if number not in self._homes:
            raise Ended
        found: dict[int, tuple[str, bytes]] = self._homes[number]["shards"]
        return found

    async def join(self, number: int, node: str, handle: bytes, loaded: int | None) -> int:
        """Registers a node's new shard, which replaces an earlier shard of the node, and returns its number.

        A loaded shard keeps its number.
        """
        shards = await self.shards(number)
        for shard, known in shards.items():
            if known == (node, handle):
                return shard
        following: int = self._homes[number]["next"]
        new = following if loaded is None else loaded
        others = {shard: known for shard, known in shards.items() if known[0] != node}
        await self._keep_home(number, {"next": max(following, new + 1), "shards": {**others, new: (node, handle)}})
        return new

    async def end(self, number: int) -> None:
        """Drops the buffer on all nodes."""
        record = self._homes.pop(number, None)
        await self._keeper.store(("buffer", number), None)
        nodes = {node for node, _ in record["shards"].values()} if record else set()
        await asyncio.gather(*(self._drop_at(node, number) for node in nodes))

    async def _drop_at(self, node: str, number: int) -> None:
        try:
            await self._until_answered(node, "drop", number)
        except Ended:
            return  # the shard was lost with its node

    async def _keep_home(self, number: int, record: Record) -> None:
        self._homes[number] = record
        await self._keeper.store(("buffer", number), Stored(record))

    # Calls about shards on this node.

    async def open(self, number: int, home: str, plan: _parts.Plan) -> tuple[int, bytes]:
        """Returns the number and handle of the node's shard, which it makes if necessary.

        Raises Ended after a shutdown.
        """
        shard = await self._found_or_made(number, home, plan.make, None)
        return shard.id, shard.handle

    async def saved(self, path: str, how: Loading) -> dict[int, Found]:
        """Returns the shards that are saved below that path, as seen from this node."""
        return await asyncio.to_thread(how.find, path)

    async def load(self, number: int, home: str, path: str, which: int, how: Loading) -> None:
        """Loads that shard as the node's shard. Raises errors of the files."""
        await self._found_or_made(number, home, lambda: how.load(path, which), which)

    async def _found_or_made(
        self, number: int, home: str, make: Callable[[], ReplayBuffer], loaded: int | None
    ) -> Shard:
        async with self._locks[number]:
            shard = await self._find(number, home)
            if shard is None:
                buffer = await asyncio.to_thread(make)
                handle = pickle.dumps(buffer)
                joined = await self._until_answered(home, "join", number, self._node, handle, loaded)
                shard = await self._keep(number, Shard(joined, home, handle, buffer))
        return shard

    async def drop(self, number: int) -> None:
        async with self._locks[number]:
            shard = self._here.pop(number, None)
            if shard is not None:
                shard.buffer.close()
            await self._keeper.store(("shard", number), None)

    async def weigh(
        self, number: int, home: str, table: int, with_least: bool, largest: float
    ) -> tuple[int, _parts.Weights] | None:
        """Returns the weights and the number of the shard."""
        shard = await self._found(number, home)
        if shard is None:
            return None
        return shard.id, await asyncio.to_thread(_parts.weigh, shard.buffer, table, with_least, largest)

    async def draw(
        self, number: int, home: str, which: int, n: int, terms: _parts.Terms, largest: float
    ) -> _parts.Part | None:
        shard = await self._found(number, home)
        if shard is None or shard.id != which:
            return None
        return await asyncio.to_thread(_parts.draw, shard.buffer, n, terms, largest)

    async def update(self, number: int, home: str, which: int, sampler: str | None, *given: Any) -> Any:
        """Returns the mask of existing rows, or None if that shard no longer exists."""
        shard = await self._found(number, home)
        if shard is None or shard.id != which:
            return None
        return await asyncio.to_thread(lambda: shard.buffer.update_priorities(*given, sampler=sampler))

    async def stats(self, number: int, home: str) -> ReplayStats | None:
        shard = await self._found(number, home)
        return None if shard is None else shard.buffer.stats()

    async def clear(self, number: int, home: str) -> None:
        shard = await self._found(number, home)
        if shard is not None:
            await asyncio.to_thread(shard.buffer.clear)

    async def save(self, number: int, home: str, path: str, saving: Saving) -> Saved | None:
        shard = await self._found(number, home)
        if shard is None:
            return None
        return await asyncio.to_thread(_save, shard, path, saving)

    async def _found(self, number: int, home: str) -> Shard | None:
        if number in self._here:
            return self._here[number]
        async with self._locks[number]:
            return await self._find(number, home)

    async def _find(self, number: int, home: str) -> Shard | None:
        """Returns the shard on this node.

        After this process and the keeper were killed, finds it in any process that has it.
        """
        if number in self._here:
            return self._here[number]
        for shard, (node, handle) in (await self._until_answered(home, "shards", number)).items():
            if node == self._node:
                try:
                    buffer = pickle.loads(handle)
                except FileNotFoundError:
                    return None
                return await self._keep(number, Shard(shard, home, handle, buffer))
        return None

    async def _keep(self, number: int, shard: Shard) -> Shard:
        await self._keeper.store(*_stored(number, shard))
        self._here[number] = shard
        return shard

    async def _until_answered(self, node: str, method: str, *arguments: Any) -> Any:
        if node == self._node:
            return await getattr(self, method)(*arguments)
        return await until_answered(self._gateways, node, "replay", method, *arguments)


def _save(shard: Shard, path: str, saving: Saving) -> Saved:
    os.makedirs(path, exist_ok=True)
    saved = shard.buffer.save(folder_of(path, shard.id))
    saving.write(path, shard.id)
    return saved


def _stored(number: int, shard: Shard) -> tuple[Key, Stored]:
    return ("shard", number), Stored({"id": shard.id, "home": shard.home}, shard.handle, "shard")
