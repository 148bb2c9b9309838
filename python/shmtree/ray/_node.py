"""The work of a node's gateway: it hosts pairs, and moves messages of this node to pairs of other nodes.

It does not depend on Ray: other gateways and the keeper are passed to it. Before it answers a call, it stores in the
keeper all state that it would need after being killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

from ..errors import ChannelClosed
from . import _frames, _handles, _hosted
from ._feed import Feed, Pulled, Request
from ._gateways import Ended, Gateways, KeeperHandle, LinkLost, Peer, report
from ._hosted import Hosted, Origin
from ._puller import Puller
from ._remote import Remote
from ._shards import Shards
from ._tickets import Runs
from ._versions import Newest, Versions

_WATCH_S = 0.25
_KEEPER_S = 1.0
_SILENT_S = 5.0  # time without a call from another node, after which that node is asked if it still pulls

Token = tuple[str, int]  # "s" or "r", and a random number


class Node:
    """The gateway of a node. Use it from one event loop.

    Other processes call each method except `start`, and may repeat a call with the same arguments.
    """

    def __init__(self, name: str, machine: str, gateways: Gateways, keeper: KeeperHandle) -> None:
        self._name, self._machine = name, machine
        self._gateways = gateways
        self._keeper = keeper
        self._hosted: dict[int, Hosted] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper_number = 0
        self._remote = Remote(name, gateways, keeper, self._run)
        self._versions = Versions(gateways, keeper, self._run)
        self._shards = Shards(name, gateways, keeper)

    async def start(self) -> None:
        self._keeper_number, everything = await self._keeper.all()
        for (kind, number), kept in everything.items():
            if kind == "home":
                self._hosted[number] = Hosted(self._name, kept, kept.record)
                for origin in kept.record["origins"]:
                    self._run(self._receive(number, origin))
            elif kind == "latest":
                self._versions.restore(number, kept)
            elif kind in ("buffer", "shard"):
                self._shards.restore(number, kept)
            elif kept.record["is_known"]:
                self._remote.restore(kind, kept)
            else:  # its end has never been handed out
                await self._keeper.store((kind, number), None)
        self._run(self._watch())

    # Calls about pairs with this home.

    async def host(self, pair: int, terms: _handles.Terms, tokens: dict[str, int]) -> tuple[bytes, str]:
        """Makes a pair. The tokens are those of the two ends of the process that makes it.

        Returns the handle of its ring, and the id of this machine.
        """
        async with self._locks[pair]:
            if pair not in self._hosted:
                record = {"pair": pair, **_hosted.new_record(terms, tokens)}
                hosted = Hosted(self._name, None, record)
                await self._store(pair, hosted)
                self._hosted[pair] = hosted
        return self._hosted[pair].handle, self._machine

    async def settle(self, pair: int, given: list[Token], taken: list[Token]) -> None:
        """Records ends in transit (`given`), and ends that have arrived or never will (`taken`)."""
        async with self._locks[pair]:
            hosted = self._hosted.get(pair)
            if hosted is None:
                return
            for end, token in given:
                hosted.give(end, token)
            for end, token in taken:
                hosted.take(end, token)
            await self._settle(pair, hosted)

    async def join(self, pair: int, node: str, kind: str, number: int, token: Token) -> None:
        """Registers the outbox of a node that is about to send, or the inbox of one that is about to receive."""
        async with self._locks[pair]:
            hosted = self._of(pair)
            origin = None
            if kind == "out":
                origin = hosted.join(node, number)
            else:
                hosted.attend(node, number)
            hosted.take(*token)
            await self._settle(pair, hosted)
            if origin is not None:
                self._run(self._receive(pair, origin))

    async def _receive(self, pair: int, origin: int) -> None:
        """Receives the messages of an outbox."""
        hosted = self._hosted[pair]
        target = Origin(hosted, origin)
        puller = Puller(target, self._gateways, target.node, pair, target.number)
        senders: tuple[Peer, ...] = ()
        receivers: tuple[Peer, ...] = ()
        try:
            senders = await puller.run()
        except Ended as ended:
            receivers = ended.peers
        acked = puller.received()  # before its origin may be used again
        async with self._locks[pair]:
            hosted.leave(origin, senders)
            await self._settle(pair, hosted)
        await puller.leave(acked, receivers)

    async def size(self, pair: int) -> int:
        """Returns the number of messages that have arrived here and were not received."""
        return self._of(pair).size()

    def _of(self, pair: int) -> Hosted:
        if pair not in self._hosted:
            raise Ended
        return self._hosted[pair]

    # Calls by processes of this node about remote pairs

    async def open_sender(self, *arguments: Any) -> bytes:
        return await self._remote.open_sender(*arguments)

    async def open_receiver(self, *arguments: Any) -> bytes:
        return await self._remote.open_receiver(*arguments)

    async def trouble(self, pair: int) -> str:
        return self._remote.trouble(pair)

    async def why(self, pair: int) -> tuple[Peer, ...]:
        return self._remote.why(pair)

    # Calls by gateways that pull from here: see `Feed`

    async def resume(self, pair: int, number: int, *arguments: Any) -> tuple[int, Runs]:
        return self._feed(pair, number).resume(*arguments)

    async def pull(self, pair: int, number: int, request: Request) -> Pulled:
        feed = self._feed(pair, number)
        pulled = await feed.pull(Request(*request))
        try:
            pulled = pulled._replace(buffers=self._gateways.offer(pulled.buffers))
        except LinkLost as lost:
            feed.trouble = str(lost)
            raise
        if pulled.tickets:
            feed.trouble = ""
        return pulled

    async def leave(self, pair: int, number: int, acked: Runs, peers: tuple[Peer, ...]) -> None:
        """Ends a feed: the other side receives no more, because `peers` were killed, or all receivers have closed."""
        if pair not in self._hosted:
            await self._remote.leave(number, acked, peers)
            return
        async with self._locks[pair]:
            hosted = self._of(pair)
            if number in hosted.record["inboxes"]:
                hosted.source.feed(number).acknowledge(acked)
                hosted.depart(number, peers)
                await self._settle(pair, hosted)

    async def knows(self, pair: int, number: int) -> bool:
        """Returns True if this node has that inbox or outbox, or knows it as the home of its pair."""
        return self._hosted[pair].knows(number) if pair in self._hosted else self._remote.knows(number)

    def _feed(self, pair: int, number: int) -> Feed:
        hosted = self._hosted.get(pair)
        feed = self._remote.feed(number) if hosted is None else hosted.source.feeds.get(number)
        if feed is None:
            raise Ended(((self._name, 0),))  # its gateway and keeper were killed, and with them the messages
        return feed

    # Calls about replay buffers.

    async def replay(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._shards, method)(*arguments)

    # Calls about a Latest.

    async def host_latest(self, number: int) -> tuple[bytes, str]:
        return await self._versions.host(number), self._machine

    async def publish(self, number: int, batch: _frames.Batch) -> int:
        return await self._versions.publish(number, batch)

    async def newest(self, number: int, newer_than: int) -> Newest | None:
        return await self._versions.newest(number, newer_than)

    async def mirror_latest(self, number: int, home: str) -> bytes:
        return await self._versions.mirror(number, home)

    # Pairs, in general.

    async def _settle(self, pair: int, hosted: Hosted) -> None:
        await self._store(pair, hosted)  # before any process can see the end of the stream
        if hosted.settle():
            await self._store(pair, hosted)

    async def _store(self, pair: int, hosted: Hosted) -> None:
        await self._keeper.store(("home", pair), hosted.kept)

    async def _watch(self) -> None:
        """Polls for changes that no call reports."""
        rounds = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            rounds += 1
            try:
                for pair in list(self._hosted):
                    await self._look_at(pair)
                await self._remote.look()
                if rounds % int(_KEEPER_S / _WATCH_S) == 0:
                    await self._check_keeper()
                    await self._check_nodes()
                    await self._remote.check_homes(_SILENT_S)
            except Exception as error:  # an error of one pair must not affect the others
                report(error)

    async def _look_at(self, pair: int) -> None:
        async with self._locks[pair]:
            hosted = self._hosted[pair]
            if hosted.settle():
                await self._store(pair, hosted)
            if hosted.is_unused():
                del self._hosted[pair]
                hosted.close()
                await self._keeper.store(("home", pair), None)

    async def _check_keeper(self) -> None:
        number = await self._keeper.identify()
        if number == self._keeper_number:
            return
        for pair, hosted in list(self._hosted.items()):
            await self._store(pair, hosted)
        for key, kept in [*self._remote.stored(), *self._versions.stored(), *self._shards.stored()]:
            await self._keeper.store(key, kept)
        self._keeper_number = number

    async def _check_nodes(self) -> None:
        """Checks the nodes that pull from here. The others are found by calls to them."""
        inboxes = [each.record["inboxes"] for each in self._hosted.values()]
        gone = await self._gateways.gone({node for nodes in inboxes for node in nodes.values()})
        for pair, hosted in list(self._hosted.items()):
            for number, node in list(hosted.record["inboxes"].items()):
                feed = hosted.source.feeds.get(number)  # None: it has departed meanwhile
                if feed is None:
                    continue
                if node in gone:
                    await self.leave(pair, number, [], ((node, 0),))
                elif feed.is_silent(_SILENT_S):
                    self._run(self._ask_whether_left(pair, number, node))

    async def _ask_whether_left(self, pair: int, number: int, node: str) -> None:
        with contextlib.suppress(LinkLost, Ended):  # other checks find nodes that are gone
            if not await self._gateways.call(node, "knows", pair, number):
                await self.leave(pair, number, [], ((node, 0),))

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report(error)

    async def stop(self) -> None:
        """Stops without notifying other processes, as if it had been killed. For tests."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(ChannelClosed):
            await asyncio.gather(*tasks, return_exceptions=True)
        for hosted in self._hosted.values():
            hosted.close()
        self._remote.close()
