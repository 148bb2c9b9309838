"""Pairs with ends on any nodes of a cluster."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from .._ipc.arguments import limit
from .._ipc.waiting import next_async
from .._process import lifetime
from ..errors import ChannelClosed
from . import _ends
from ._ends import Pair, make_pair, new_token


def create_pair(
    capacity: int | None = 8, *, max_bytes: int | None = None, home: Any = None
) -> tuple[OfferedSender, OfferedReceiver]:
    """Makes a channel across nodes and returns its two ends, which you pass to tasks and actors.

    They arrive as a Sender and a Receiver with all methods of those of `shmtree.create_pair`. In this process they are
    opened when they are first used. The stream ends when all ends that were passed on, and these two, are closed or
    dropped. A process that passes them on and uses neither therefore closes both.

    Args:
        capacity: Number of unreceived messages at which `put` blocks. The limit applies separately at the home and on
            each other node; None or 0 means no limit.
        max_bytes: The same limit in bytes.
        home: Where messages are stored until they are received: the handle of the actor that receives them, or the id
            of a node; None is this node. Choose the node that receives most of them; ends may be on any node.
    """
    terms = {"kind": "pair", "capacity": limit("capacity", capacity), "max_bytes": limit("max_bytes", max_bytes)}
    pair, sending, receiving = make_pair(terms, home)
    sender, receiver = OfferedSender(pair, sending), OfferedReceiver(pair, receiving)
    sender._other, receiver._other = weakref.ref(receiver), weakref.ref(sender)
    return sender, receiver


class _Offered:
    """An end in the process that made the pair. It is attached from the beginning, and opened when it is first used."""

    _letter = ""

    def __init__(self, pair: Pair, token: int) -> None:
        self._pair = pair
        self._token: int | None = token  # set while it is attached without having been opened
        self._given: list[tuple[str, int]] = []  # ends that its home does not know of yet
        self._end: Any = None
        self._closed = False
        self._opening = lifetime.lock_in(self, "_opening")
        # The other end, while the process that made the pair may still use only one. Weak, so that a dropped end can
        # close.
        self._other: weakref.ref[_Offered] | None = None

    def open(self) -> Any:
        """Opens the end. If this process has not passed the other end on, it detaches from that end."""
        with self._opening:
            if self._closed:
                raise ChannelClosed("this end is closed")
            if self._end is None:
                self._end = _ends.arrive(self._pair, self._letter, new_token() if self._token is None else self._token)
                self._token = None
                self._tell()
                other = None if self._other is None else self._other()
                if other is not None and not other._given and other._end is None:
                    other._let_go()
            return self._end

    def close(self) -> None:
        """Closes this end in this process. Idempotent."""
        self._closed = True
        if self._end is not None:
            self._end.close()
        self._let_go()

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        end = self._end
        if self._closed or end is None:
            return f"<{type(self).__name__}, {'closed' if self._closed else 'not used yet'}>"
        return repr(end)

    def _let_go(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            self._tell([(self._letter, token)])

    def _tell(self, taken: list[tuple[str, int]] | None = None) -> None:
        given, self._given = self._given, []
        if given or taken:
            self._pair.settle(given, taken or [])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._closed:
            raise ChannelClosed("a closed end cannot be handed to another process")
        if self._end is not None:
            reduced: tuple[Any, ...] = self._end.__reduce__()
            return reduced
        return _ends.arrive, (self._pair, self._letter, self.give())

    def give(self) -> int:
        """Returns a token of an end that is in transit from now on."""
        if self._closed:
            raise ChannelClosed("a closed end cannot be handed to another process")
        token = new_token()
        self._given.append((self._letter, token))
        if self._token is None:  # this object does not keep the stream open
            self._tell()
        return token

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.open(), name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Ray may be shut down
            taken = [] if self._token is None else [(self._letter, self._token)]
            if taken or self._given:
                from . import _actors

                _actors.tell(self._pair.home, "settle", self._pair.number, self._given, taken)


class OfferedSender(_Offered):
    """The sending end in the process that made the pair."""

    _letter = "s"

    def __exit__(self, *exception: object) -> None:
        """Closes the end, by `fail` after an exception as other senders do."""
        code = lifetime.failure_of(exception[1])
        if code is not None and not self._closed:
            self.open()._fail(code)
        self.close()


class OfferedReceiver(_Offered):
    """The receiving end in the process that made the pair."""

    _letter = "r"

    #: `x in receiver` raises TypeError. By iteration, it would receive every message.
    __contains__ = None

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.open())
        except ChannelClosed:
            raise StopIteration from None

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await next_async(self._get_async)

    async def _get_async(self) -> Any:
        return await self.open().get_async()
