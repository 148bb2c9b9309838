"""Reports of killed processes on other nodes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from .. import errors
from .._codec.frames import register
from ._gateways import Ended, Peer


class PeerDied(errors.PeerDied):
    """No peer is left that could serve the call, and one was killed or its node is gone.

    Attributes:
        peers: The node of each killed peer, and its process id there. The process id is 0 if the whole node is gone, or
            if the peer was killed before it stored its pid.
        pids: The process ids alone, without zeros.
    """

    peers: tuple[Peer, ...]

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        self.peers = tuple((str(node), int(pid)) for node, pid in peers)
        self.pids = tuple(pid for _, pid in self.peers if pid)
        told = ", ".join(f"process {pid} of node {node}" if pid else f"node {node}" for node, pid in self.peers)
        super().__init__(f"no peer is left; killed: {told}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.peers,)


@contextlib.contextmanager
def told_of_end(closed: str) -> Iterator[None]:
    """Converts Ended of calls to other gateways: to PeerDied if a process was killed, else to ChannelClosed."""
    try:
        yield
    except Ended as ended:
        if ended.peers:
            raise PeerDied(ended.peers) from None
        raise errors.ChannelClosed(closed) from None


class Deaths:
    """The last message of a stream with killed senders. Its receiver gets PeerDied."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self.peers = [list(peer) for peer in peers]


def _raise(peers: Any) -> Any:
    raise PeerDied(peers)


register(Deaths, operator.attrgetter("peers"), _raise)
