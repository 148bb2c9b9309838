"""The home side of a pair: its ring, the messages that arrive there, and the remote nodes that send or receive."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

from .._codec.frames import pack
from .._ipc.channel import Receiver
from ..errors import ChannelClosed, PeerDied
from . import _handles
from ._deaths import Deaths
from ._feed import Source
from ._gateways import Ended, Peer
from ._keeper import Stored
from ._landing import ORIGINS, WORDS, Landing
from ._puller import Space

_OWN_SENDERS = 2  # the gateway and the keeper
_UNLIMITED_MESSAGES, _UNLIMITED_BYTES = 1 << 20, 64 << 20


class Hosted:
    """One pair at its home, in the gateway there. Use it from one event loop.

    The keeper stores `record`, with these keys:

    - open: tokens of ends in transit, and of the maker's ends, by "s" and "r".
    - taken: tokens of ends that arrived before they were reported as given.
    - origins: the remote outboxes by the number of their messages' origin. Each has a node, its first ticket there, and
      its own number.
    - left: numbers of outboxes that have ended, by node, for reuse. next_origin: the next unused number.
    - inboxes: the remote nodes that receive, by the numbers of their inboxes.
    - peers: killed remote senders that no message has reported to the receivers yet. told: number of such
      messages that were put so far.
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
        self.landing = Landing(channel, table)
        self._receiver: Receiver[Any] | None = Receiver._of(channel)
        channel.leave_to_successor()
        inherited = {frame.ticket: frame for frame in _handles.inherit(self._receiver)} if kept else {}
        self._gone: tuple[Peer, ...] = ()
        self.source = Source(self._open_receiver, node, inherited, is_shared=True)
        for number in record["inboxes"]:
            self.source.feed(number)
        self.source.assign_rest()

    @property
    def handle(self) -> bytes:
        return self._handle

    @property
    def kept(self) -> Stored:
        ends = "s" * self._may_send() + "r" * self._may_receive()
        return Stored(self.record, self._handle, "channel", ends, (self._table,))

    def _open_receiver(self) -> Receiver[Any]:
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

    def join(self, node: str, number: int) -> int | None:
        """Registers the outbox of another node. Returns its origin if it is new."""
        if any(its == number for _, _, its in self.record["origins"].values()):
            return None
        left: list[int] = self.record["left"].get(node, [])
        origin: int = left.pop() if left else self.record["next_origin"]
        if origin >= ORIGINS:
            raise ValueError(f"{origin - 1} nodes have sent to this pair, which is the limit")
        self.record["next_origin"] = max(self.record["next_origin"], origin + 1)
        self.record["origins"][origin] = (node, self.landing.next_ticket(origin), number)
        return origin

    def leave(self, origin: int, peers: tuple[Peer, ...]) -> None:
        """Records that the stream of an outbox has ended, and that `peers` were killed."""
        node, _, _ = self.record["origins"].pop(origin)
        self.record["left"].setdefault(node, []).append(origin)
        if not self._is_queue:
            self.record["peers"] += peers
        self.landing.forget(origin)

    def attend(self, node: str, number: int) -> None:
        """Gives an inbox of that node a part of the messages from now on."""
        self.record["inboxes"][number] = node
        self.source.feed(number)
        self.landing.channel.require_portable()

    def knows(self, number: int) -> bool:
        return number in self.record["inboxes"] or any(its == number for _, _, its in self.record["origins"].values())

    def depart(self, number: int, peers: tuple[Peer, ...]) -> None:
        """Records that no process receives from that inbox any more, and that `peers` were killed."""
        if self.record["inboxes"].pop(number, None) is not None:
            self.source.drop(number)
            self._gone += peers
            for _, pid in peers:
                self.landing.channel.note_killed_receiver(pid)

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
            self.landing.open()
        else:
            self.landing.close()
        if self._may_receive() and self._receiver is None:
            self._receiver = Receiver._of(self.landing.channel)
        elif not self._may_receive() and self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        return changed

    def _tell(self) -> bool:
        """Ends the stream, and reports the deaths in its last message, once no process of this machine sends any more.

        Returns True if that is done.
        """
        if self.landing.next_ticket(0) == self.record["told"]:
            if self.landing.others_send(_OWN_SENDERS):
                return False
            try:
                self.landing.put(pack(Deaths(self.record["peers"])))
            except queue.Full:
                return False
            except (ChannelClosed, PeerDied):
                pass  # no receiver is left that could get it
        self.record["told"] = self.landing.next_ticket(0)
        self.record["peers"] = []
        return True

    def size(self) -> int:
        stats = self.landing.channel.stats()
        return int(stats["queued"] + stats["taken"])

    def is_unused(self) -> bool:
        """Returns True if no process has the pair and none can get it any more."""
        if self._may_send() or self._may_receive():
            return False
        stats = self.landing.channel.stats()
        return bool(stats["senders"] == 0 and stats["receivers"] == 0)

    def check_receivers(self) -> None:
        try:
            self.landing.sender._check_receivers()
        except (ChannelClosed, PeerDied) as error:
            self.raise_ended(error)

    def raise_ended(self, error: Exception) -> None:
        pids = getattr(error, "pids", ())
        for pid in pids:
            # a report removes them from the list, but senders of this machine need it, too
            self.landing.channel.note_killed_receiver(pid)
        elsewhere = {pid for _, pid in self._gone}
        self._gone += tuple((self.node, pid) for pid in pids if pid not in elsewhere)
        raise Ended(self._gone) from None

    def close(self) -> None:
        self.landing.close()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


class Origin:
    """The messages of one outbox in the ring; see `_puller.Target`."""

    def __init__(self, hosted: Hosted, origin: int) -> None:
        self._hosted, self.origin = hosted, origin
        self.node, self._first, self.number = hosted.record["origins"][origin]
        self._landing = hosted.landing

    @property
    def sender(self) -> Any:
        return self._landing.sender

    def expected(self) -> int:
        expected: int = self._landing.next_ticket(self.origin) - self._first
        return expected

    def landed(self) -> tuple[int, dict[int, int]]:
        return -1, {}

    def check(self) -> None:
        self._hosted.check_receivers()

    def space(self, unacked: int) -> Space:
        stats = self._landing.channel.stats()
        messages = stats["capacity"] - stats["queued"] if stats["capacity"] else _UNLIMITED_MESSAGES
        nbytes = stats["max_bytes"] - stats["queued_bytes"] if stats["max_bytes"] else _UNLIMITED_BYTES
        share = max(len(self._hosted.record["origins"]), 1)
        return Space(-(-messages // share), -(-nbytes // share))

    def land(self, number: int, ticket: int | None, frame: Any) -> None:
        self._landing.land(self.origin, self._first + number, frame)

    def received(self, numbers: Iterable[int]) -> list[int]:
        found = self._landing.received(self.origin, (self._first + each for each in numbers))
        return [each - self._first for each in found]

    def returned(self) -> list[int]:
        return []

    def acked(self, numbers: Iterable[int]) -> None:
        pass


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
