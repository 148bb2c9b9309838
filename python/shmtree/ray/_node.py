"""The work of a node's gateway: it hosts pairs, and moves messages of this node to pairs of other nodes.

It does not depend on Ray: other gateways and the keeper are passed to it. Before it answers a call, it stores in the
keeper all state that it would need after being killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from typing import Any

from ..errors import ChannelClosed
from . import _frames, _handles, _hosted
from ._dealing import Dealing
from ._gateways import Ended, Gateways, KeeperHandle, LinkLost, Peer, report, until_answered
from ._hosted import Hosted
from ._inboxes import Inboxes
from ._keeper import Key, Stored
from ._outbox import Outbox
from ._pump import Space
from ._shards import Shards
from ._tickets import Runs
from ._versions import Newest, Versions

_WATCH_S = 0.25
_KEEPER_S = 1.0
_SILENT_S = 5.0  # time without a call of an outbox, after which its node is asked if it still has the outbox

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
        self._outboxes: dict[int, Outbox] = {}  # by pair: the outbox for new senders
        self._sending: set[tuple[int, int, int]] = set()  # pair, origin and first ticket of all outboxes
        self._dealings: dict[int, Dealing] = {}  # by the numbers of the inboxes
        self._ended: dict[int, tuple[Peer, ...]] = {}  # by remote pair: its receivers that were killed
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper_number = 0
        self._versions = Versions(gateways, keeper, self._run)
        self._inboxes = Inboxes(name, gateways, keeper)
        self._shards = Shards(name, gateways, keeper)

    async def start(self) -> None:
        self._keeper_number, everything = await self._keeper.all()
        for key, kept in everything.items():
            if key[0] == "home":
                self._hosted[kept.record["pair"]] = Hosted(self._name, kept, kept.record)
            elif key[0] == "latest":
                self._versions.restore(kept.record["latest"], kept)
            elif key[0] in ("buffer", "shard"):
                self._shards.restore(key[1], kept)
            elif key[0] == "in":
                self._inboxes.restore(kept)
            elif key[0] == "out":
                self._begin(Outbox(self._name, self._gateways, kept.record, kept))
        for key, kept in everything.items():
            if key[0] == "deal":
                await self._restore_dealing(key, kept)
        for hosted in self._hosted.values():
            hosted.inherited.clear()  # messages that were taken and not yet numbered return to the ring
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

    async def join(self, pair: int, node: str, token: Token) -> tuple[int, int]:
        """Registers a node that is about to send. Returns the number of its outbox, and its first ticket."""
        async with self._locks[pair]:
            hosted = self._of(pair)
            joined = hosted.join(node, token[1])
            hosted.take(*token)
            await self._settle(pair, hosted)
            return joined

    async def space(self, pair: int, origin: int, wait: bool) -> Space:
        return await self._of(pair).arrivals.space(origin, wait)

    async def land(self, pair: int, origin: int, first: int, sizes: list[list[int]], *buffers: Any) -> Space:
        return await self._of(pair).arrivals.land(origin, first, list(zip(buffers, sizes)))

    async def received(self, pair: int, origin: int, tickets: Runs) -> Runs:
        return await self._of(pair).received(origin, tickets)

    async def over(self, pair: int, origin: int, first: int, peers: tuple[Peer, ...]) -> None:
        async with self._locks[pair]:
            hosted = self._hosted.get(pair)
            if hosted is not None:
                hosted.leave(origin, first, peers)
                await self._settle(pair, hosted)

    async def attend(self, pair: int, node: str, number: int, token: Token) -> None:
        """Registers a node that is about to receive, with the number of its inbox."""
        async with self._locks[pair]:
            hosted = self._of(pair)
            if hosted.attend(node, number):
                record = {"pair": pair, "node": node, "number": number}
                dealing = Dealing(self._gateways, record, hosted.handle, {}, None)
                await self._keeper.store(dealing.key, dealing.kept)
                self._deal(dealing)
            hosted.take(*token)
            await self._settle(pair, hosted)

    async def size(self, pair: int) -> int:
        """Returns the number of messages that have arrived here and were not received."""
        return self._of(pair).size()

    async def attends(self, pair: int, number: int) -> bool:
        return pair in self._hosted and number in self._hosted[pair].record["inboxes"]

    async def _restore_dealing(self, key: Key, kept: Stored) -> None:
        hosted = self._hosted.get(kept.record["pair"])
        if hosted is None or kept.record["number"] not in hosted.record["inboxes"]:
            await self._keeper.store(key, None)
        else:
            self._deal(Dealing(self._gateways, kept.record, hosted.handle, hosted.inherited, kept))

    def _deal(self, dealing: Dealing) -> None:
        self._dealings[dealing.record["number"]] = dealing
        self._run(self._run_dealing(dealing))

    async def _run_dealing(self, dealing: Dealing) -> None:
        pair, node, number = (dealing.record[each] for each in ("pair", "node", "number"))
        hosted = self._hosted[pair]
        peers: tuple[Peer, ...] = ()
        try:
            await dealing.run(hosted.receiver, self._name, functools.partial(self._may_get_more, pair))
        except Ended as ended:
            peers = ended.peers
        del self._dealings[number]
        async with self._locks[pair]:
            hosted.depart(number, peers)
            await self._settle(pair, hosted)
        await self._keeper.store(dealing.key, None)
        with contextlib.suppress(Ended):
            await until_answered(self._gateways, node, "inbox", "forget", number)

    def _may_get_more(self, pair: int) -> bool:
        """True while this gateway has taken a message from the ring for a node that has not received it yet."""
        dealings = (each for each in self._dealings.values() if each.record["pair"] == pair)
        return bool(self._hosted[pair].inherited) or any(each.holds for each in dealings)

    def _of(self, pair: int) -> Hosted:
        if pair not in self._hosted:
            raise Ended
        return self._hosted[pair]

    # Calls by senders on this node, about remote pairs

    async def open_sender(self, pair: int, home: str, terms: _handles.Terms, token: Token) -> bytes:
        """Returns a handle of a sender, which is in transit. Raises Ended if the pair no longer exists."""
        async with self._locks[pair]:
            outbox = self._outboxes.get(pair)
            if outbox is not None and not outbox.pump.is_over:
                handle = outbox.grant()
                await until_answered(self._gateways, home, "settle", pair, [], [token])
                return handle
            origin, first = await until_answered(self._gateways, home, "join", pair, self._name, token)
            record = {"pair": pair, "home": home, "origin": origin, "first": first, "terms": terms}
            outbox = Outbox(self._name, self._gateways, record, None)
            await self._keeper.store(outbox.key, outbox.kept)
            self._begin(outbox)
            return outbox.grant()

    async def trouble(self, pair: int) -> str:
        """Returns the reason why the outbox of a remote pair could not send the last time, if it is known."""
        outbox = self._outboxes.get(pair)
        return "" if outbox is None else outbox.pump.trouble

    async def left(self, pair: int, origin: int, first: int) -> tuple[Peer, ...] | None:
        """Returns None while this node has that outbox, and the killed senders after that.

        If this node does not know the pair any more, the whole node counts as killed.
        """
        async with self._locks[pair]:
            if (pair, origin, first) in self._sending:
                return None
            return () if pair in self._ended else ((self._name, 0),)

    async def why(self, pair: int) -> tuple[Peer, ...]:
        """Returns the killed receivers of a remote pair."""
        return self._ended.get(pair, ())

    def _begin(self, outbox: Outbox) -> None:
        self._outboxes[outbox.record["pair"]] = outbox
        self._sending.add(outbox.identity)
        self._run(self._pump(outbox))

    async def _pump(self, outbox: Outbox) -> None:
        try:
            await outbox.pump.run()
        except Ended as ended:
            self._ended[outbox.record["pair"]] = ended.peers
        outbox.pump.is_over = True
        self._sending.discard(outbox.identity)
        outbox.receiver.close()
        await self._keeper.store(outbox.key, None)
        if self._outboxes.get(outbox.record["pair"]) is outbox:
            del self._outboxes[outbox.record["pair"]]

    # Calls by receivers on this node, about remote pairs

    async def open_receiver(self, pair: int, home: str, terms: _handles.Terms, token: Token) -> bytes:
        """Returns a handle of a receiver, which is in transit. Raises Ended if the pair no longer exists."""
        return await self._inboxes.open(pair, home, terms, token)

    async def inbox(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._inboxes, method)(*arguments)

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
                await self._inboxes.look()
                if rounds % int(_KEEPER_S / _WATCH_S) == 0:
                    await self._check_keeper()
                    await self._check_nodes()
                    await self._inboxes.check_homes()
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
        moving: list[Outbox | Dealing] = [*self._outboxes.values(), *self._dealings.values()]
        for each in moving:
            await self._keeper.store(each.key, each.kept)
        await self._inboxes.store_all()
        await self._versions.store_all()
        for key, kept in list(self._shards.stored()):
            await self._keeper.store(key, kept)
        self._keeper_number = number

    async def _check_nodes(self) -> None:
        sending = {node for hosted in self._hosted.values() for node, *_ in hosted.record["origins"].values()}
        gone = await self._gateways.gone(sending)
        for pair, hosted in list(self._hosted.items()):
            for origin, first, node in hosted.of_nodes(gone):
                await self.over(pair, origin, first, ((node, 0),))
            for origin, first, node in hosted.silent(_SILENT_S):
                self._run(self._ask_whether_left(pair, origin, first, node))

    async def _ask_whether_left(self, pair: int, origin: int, first: int, node: str) -> None:
        with contextlib.suppress(LinkLost, Ended):  # other checks find nodes that are gone
            peers = await self._gateways.call(node, "left", pair, origin, first)
            if peers is not None:
                await self.over(pair, origin, first, peers)

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
        for inbox in self._inboxes.all():
            inbox.close()
