"""The work of a node's shard server: it has the node's shards of replay buffers, and samples from them for other nodes.

It also keeps the list of all shards of each buffer whose home is this node. Like the gateway, it does not depend on
Ray, and stores in its keeper all state that it would need after being killed, before it answers a call. The keeper
holds the memory, too.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from ..replay import ReplayStats, Saved
from ..replay._buffer import ReplayBuffer
from . import _parts
from ._node import Gateways, report
from ._pump import Ended, LinkLost
from ._shard_files import Found, Loading, Saving, folder_of

_KEEPER_S = 1.0
_PAUSE_S = 0.2

Key = tuple[str, int]
Record = dict[str, Any]
#: A method of `Shards`, its arguments, and options.
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class ShardKeeper:
    """The keeper of a node's shards, in a process that does nothing else.

    If it is replaced, the server sends everything again.
    """

    def __init__(self) -> None:
        self.number = random.getrandbits(62)
        self._kept: dict[Key, tuple[Record, Any]] = {}

    def store(self, key: Key, record: Record | None) -> None:
        """Keeps this record under the key, and the shard of the handle in it; None removes it."""
        known = self._kept.pop(key, None)
        if record is None:
            return
        handle = record.get("handle")
        if known is not None and known[0].get("handle") == handle:
            held = known[1]
        else:
            held = None if handle is None else pickle.loads(handle)
        self._kept[key] = record, held

    def all(self) -> tuple[int, dict[Key, Record]]:
        return self.number, {key: record for key, (record, _) in self._kept.items()}


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

    def __init__(self, node: str, gateways: Gateways, keeper: Any) -> None:
        self._node, self._gateways, self._keeper = node, gateways, keeper
        self._homes: dict[int, Record] = {}  # next: number of the next shard; shards: node and handle by number
        self._here: dict[int, Shard] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._keeper_number = 0
        self._watching: Any = None

    async def start(self) -> None:
        self._keeper_number, everything = await self._keeper.all()
        for (kind, number), record in everything.items():
            if kind == "home":
                self._homes[number] = record
            else:
                self._here[number] = Shard(**record, buffer=pickle.loads(record["handle"]))
        self._watching = asyncio.ensure_future(self._watch())

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
        await self._keeper.store(("home", number), None)
        nodes = {node for node, _ in record["shards"].values()} if record else set()
        await asyncio.gather(*(self._drop_at(node, number) for node in nodes))

    async def _drop_at(self, node: str, number: int) -> None:
        try:
            await self._until_answered(node, "drop", number)
        except Ended:
            return  # the shard was lost with its node

    async def _keep_home(self, number: int, record: Record) -> None:
        self._homes[number] = record
        await self._keeper.store(("home", number), record)

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

    async def update(self, number: int, home: str, which: int, *given: Any, sampler: str | None) -> Any:
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
        await self._keeper.store(("shard", number), _record(shard))
        self._here[number] = shard
        return shard

    # Buffers, in general.

    async def _until_answered(self, node: str, method: str, *arguments: Any) -> Any:
        if node == self._node:
            return await getattr(self, method)(*arguments)
        while True:
            try:
                return await self._gateways.call(node, method, *arguments)
            except LinkLost:
                if await self._gateways.gone((node,)):  # a server that never called it gets no other notice
                    raise Ended(((node, 0),)) from None
                await asyncio.sleep(_PAUSE_S)

    async def _watch(self) -> None:
        """Sends all records to the keeper again, whenever the keeper was replaced."""
        while True:
            await asyncio.sleep(_KEEPER_S)
            try:
                number = await self._keeper.identify()
                if number != self._keeper_number:
                    for each, record in list(self._homes.items()):
                        await self._keeper.store(("home", each), record)
                    for each, shard in list(self._here.items()):
                        await self._keeper.store(("shard", each), _record(shard))
                    self._keeper_number = number
            except Exception as error:
                report(error)


def _save(shard: Shard, path: str, saving: Saving) -> Saved:
    os.makedirs(path, exist_ok=True)
    saved = shard.buffer.save(folder_of(path, shard.id))
    saving.write(path, shard.id)
    return saved


def _record(shard: Shard) -> Record:
    return {"id": shard.id, "home": shard.home, "handle": shard.handle}
