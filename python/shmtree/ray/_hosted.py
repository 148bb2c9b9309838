"""The home side of a pair: its ring, the messages that arrive there, and the remote nodes that send or receive."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import Any

from .._codec.frames import pack
from .._ipc.channel import Receiver
from ..errors import ChannelClosed, PeerDied
from . import _arrivals, _handles
from ._arrivals import Arrivals
from ._deaths import Deaths
from ._gateways import Ended, Peer
from ._keeper import Stored
from ._landing import ORIGINS, WORDS, Landing
from ._tickets import Runs, each_of, runs

_OWN_SENDERS = 2  # the gateway and the keeper


class Hosted:
    """One pair at its home, in the gateway there. Use it from one event loop.

    The keeper stores `record`, with these keys:

    - open: tokens of ends in transit, and of the maker's ends, by "s" and "r".
    - taken: tokens of ends that arrived before they were reported as given.
    - origins: the remote outboxes by number. Each has a node, its first ticket, and the token of the sender for which
      it was made.
    - left: numbers of outboxes that have ended, by node, for reuse. next_origin: the next unused number.
    - inboxes: the remote nodes that receive, by the numbers of their inboxes.
    - peers: killed remote senders that no message has reported to the receivers yet. told: number of such
      messages that were put so far.

    Attributes:
        inherited: Messages that a killed gateway had taken for other nodes, by ticket.
    """

    def __init__(self, node: str, kept: Stored | None, record: dict[str, Any]) -> None:
        self.node = node
        if kept is None:
            channel = _handles.new_channel(record["terms"])
            self._handle = _handles.handle_of(channel)
            self._table, table = _handles.new_table(WORDS)
        else:
            channel = _handles.open_quietly(kept.handle)
            self._handle, (self._table,) = kept.handle, kept.tables
            table = _handles.open_table(self._table)
        self.record = record
        self._is_queue = record["terms"]["kind"] == "queue"
        self._landing = Landing(channel, table)
        self._receiver: Receiver[Any] | None = Receiver._of(channel)
        channel.leave_to_successor()
        self.inherited = {frame.ticket: frame for frame in _handles.inherit(self._receiver)} if kept else {}
        self._gone: tuple[Peer, ...] = ()
        self._heard: dict[int, float] = {}  # time of each origin's last call
        self.arrivals = Arrivals(
            self._landing, lambda: max(len(self.record["origins"]), 1), self._check, self._raise_ended
        )

    @property
    def handle(self) -> bytes:
        return self._handle

    @property
    def kept(self) -> Stored:
        ends = "s" * self._may_send() + "r" * self._may_receive()
        return Stored(self.record, self._handle, "channel", ends, (self._table,))

    @property
    def receiver(self) -> Receiver[Any]:
        """The receiver of the ring, from which the inboxes are served."""
        if self._receiver is None:
            raise Ended(self._gone)
        return self._receiver

    def give(self, end: str, token: int) -> None:
        """Records an end that is in transit."""
        if token in self.record["taken"]:
            self.record["taken"].remove(token)
        else:
            self.record["open"][end].add(token)

    def take(self, end: str, token: int) -> None:
        """Records that an end has arrived, or never will."""
        if token in self.record["open"][end]:
            self.record["open"][end].remove(token)
        else:
            self.record["taken"].add(token)

    def join(self, node: str, token: int) -> tuple[int, int]:
        """Returns the number of another node's outbox, and its first ticket. The same token gets the same numbers."""
        for known, (_, first, its) in self.record["origins"].items():
            if its == token:
                return known, first
        left: list[int] = self.record["left"].get(node, [])
        origin: int = left.pop() if left else self.record["next_origin"]
        if origin >= ORIGINS:
            raise ValueError(f"{origin - 1} nodes have sent to this pair, which is the limit")
        self.record["next_origin"] = max(self.record["next_origin"], origin + 1)
        first = self._landing.next_ticket(origin)
        self.record["origins"][origin] = (node, first, token)
        return origin, first

    def leave(self, origin: int, first: int, peers: tuple[Peer, ...]) -> None:
        node, known, _ = self.record["origins"].get(origin, ("", -1, 0))
        if known != first:  # reported before
            return
        del self.record["origins"][origin]
        self.record["left"].setdefault(node, []).append(origin)
        if not self._is_queue:
            self.record["peers"] += peers
        self._landing.forget(origin)

    def of_nodes(self, nodes: set[str]) -> list[tuple[int, int, str]]:
        """Returns the outboxes on these nodes: number, first ticket and node."""
        return [(origin, first, node) for origin, (node, first, _) in self.record["origins"].items() if node in nodes]

    def attend(self, node: str, number: int) -> bool:
        """Gives an inbox of that node a part of the messages from now on. Returns True if the inbox is new."""
        is_new = number not in self.record["inboxes"]
        self.record["inboxes"][number] = node
        self._landing.channel.require_portable()
        return is_new

    def depart(self, number: int, peers: tuple[Peer, ...]) -> None:
        """Records that no process receives from that inbox any more, and that `peers` were killed."""
        if self.record["inboxes"].pop(number, None) is not None:
            self._gone += peers
            for _, pid in peers:
                self._landing.channel.note_killed_receiver(pid)

    def _may_send(self) -> bool:
        return bool(self.record["open"]["s"] or self.record["origins"] or self.record["peers"])

    def _may_receive(self) -> bool:
        return bool(self.record["open"]["r"] or self.record["inboxes"])

    def settle(self) -> bool:
        """Attaches to an end while remote processes have it or it is in transit.

        Returns True if the record has changed.
        """
        changed = False
        if self.record["peers"] and not self.record["open"]["s"] and not self.record["origins"]:
            changed = self._tell()
        if self._may_send():
            self._landing.open()
        else:
            self._landing.close()
        if self._may_receive() and self._receiver is None:
            self._receiver = Receiver._of(self._landing.channel)
        elif not self._may_receive() and self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        return changed

    def _tell(self) -> bool:
        """Ends the stream, and reports the deaths in its last message, once no process of this machine sends any more.

        Returns True if that is done.
        """
        if self._landing.next_ticket(0) == self.record["told"]:
            if self._landing.others_send(_OWN_SENDERS):
                return False
            try:
                self._landing.put(pack(Deaths(self.record["peers"])))
            except queue.Full:
                return False
            except (ChannelClosed, PeerDied):
                pass  # no receiver is left that could get it
        self.record["told"] = self._landing.next_ticket(0)
        self.record["peers"] = []
        return True

    def size(self) -> int:
        stats = self._landing.channel.stats()
        return int(stats["queued"] + stats["taken"])

    def is_unused(self) -> bool:
        """Returns True if no process has the pair and none can get it any more."""
        if self._may_send() or self._may_receive():
            return False
        stats = self._landing.channel.stats()
        return bool(stats["senders"] == 0 and stats["receivers"] == 0)

    def _check(self, origin: int) -> None:
        """Raises Ended if no receiver is left, or that outbox has ended."""
        self._heard[origin] = time.monotonic()
        if origin not in self.record["origins"]:
            raise Ended(self._gone)
        self._check_receivers()

    def silent(self, seconds: float) -> list[tuple[int, int, str]]:
        """Returns outboxes, like `of_nodes`, that have not called for `seconds`. Restarts their time."""
        now = time.monotonic()
        found = []
        for origin, (node, first, _) in self.record["origins"].items():
            if now - self._heard.setdefault(origin, now) >= seconds:
                self._heard[origin] = now
                found.append((origin, first, node))
        return found

    def _check_receivers(self) -> None:
        try:
            self._landing.sender._check_receivers()
        except (ChannelClosed, PeerDied) as error:
            self._raise_ended(error)

    def _raise_ended(self, error: Exception) -> None:
        pids = getattr(error, "pids", ())
        for pid in pids:
            # a report removes them from the list, but senders of this machine need it, too
            self._landing.channel.note_killed_receiver(pid)
        elsewhere = {pid for _, pid in self._gone}
        self._gone += tuple((self.node, pid) for pid in pids if pid not in elsewhere)
        raise Ended(self._gone) from None

    async def received(self, origin: int, tickets: Runs) -> Runs:
        deadline = time.monotonic() + _arrivals.LONGEST_S
        pause = _arrivals.FIRST_POLL_S
        while True:
            found = self._landing.received(origin, each_of(tickets))
            if found or time.monotonic() >= deadline:
                return runs(found)
            self._check_receivers()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _arrivals.MAX_POLL_S)

    def close(self) -> None:
        self._landing.close()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def new_record(terms: _handles.Terms, tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "terms": terms,
        "open": {end: {token} for end, token in tokens.items()},
        "taken": set(),
        "origins": {},
        "left": {},
        "next_origin": 1,
        "inboxes": {},
        "peers": [],
        "told": 0,
    }
