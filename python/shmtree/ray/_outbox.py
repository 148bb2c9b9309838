"""The sending side of a pair on another node than its home."""

from __future__ import annotations

from typing import Any

from .._ipc.channel import Receiver
from .._process import handles as _grants
from . import _handles
from ._feed import Source
from ._keeper import Key, Stored


class Outbox:
    """A channel on this node from which the home of a pair pulls. The keys of `record` are those of an inbox."""

    kind = "out"

    def __init__(self, node: str, record: dict[str, Any], kept: Stored | None) -> None:
        if kept is None:
            # The channel ends, even if its pair does not.
            own = {"kind": "pair", "on_peer_death": "raise", "portable": True}
            self.channel = _handles.new_channel({**record["terms"], **own})
            self.handle = _handles.handle_of(self.channel)
        else:
            self.channel, self.handle = _handles.open_quietly(kept.handle), kept.handle
        self.record = record
        self.receiver: Receiver[Any] = Receiver._of(self.channel)
        self.channel.leave_to_successor()
        inherited = {frame.ticket: frame for frame in _handles.inherit(self.receiver)} if kept else {}
        self.source = Source(lambda: self.receiver, node, inherited, is_shared=False)
        self.feed = self.source.feed(record["number"])

    @property
    def key(self) -> Key:
        return self.kind, self.record["number"]

    @property
    def kept(self) -> Stored:
        return Stored(self.record, self.handle, "channel", "r")

    def grant(self) -> bytes:
        """Returns a handle of a sender, which is in transit from now on."""
        return _grants.handle_of(self.channel, None, False)

    @property
    def is_over(self) -> bool:
        """True if the stream has ended: a new sender needs another outbox."""
        return self.source.is_closed or self.receiver.closed

    def close(self) -> None:
        self.receiver.close()


def new_record(pair: int, home: str, number: int, terms: _handles.Terms) -> dict[str, Any]:
    return {"pair": pair, "home": home, "number": number, "terms": terms, "is_known": False}
