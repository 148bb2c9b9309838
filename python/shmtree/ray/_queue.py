"""A queue for all nodes."""

from __future__ import annotations

from typing import Any

from .._ipc.arguments import limit, whole
from .._ipc.channel import Terms
from ..errors import ChannelClosed
from . import _ends
from ._deaths import told_of_end
from ._ends import Pair
from ._pairs import OfferedReceiver, OfferedSender


class Queue:
    """`shmtree.Queue` across nodes: any task or actor that is given it puts and gets, and it never ends.

    It has the methods of `multiprocessing.Queue` and of `ray.util.queue.Queue`, with their exceptions `queue.Full` and
    `queue.Empty`. Each object is got once, in the order in which its putter put them. It is there for as long as
    anybody has it, or is about to be given it; an object that nobody has got by then goes with it. Any thread.

    Args:
        maxsize: objects that were put and not yet got, at the home, and again on each other node, before `put` waits; 0
            or less is unlimited.
        max_bytes: bytes of them, likewise; None is unlimited.
        home: where they lie, as in `create_pair`; best where they are got. None is this node.
    """

    def __init__(self, maxsize: int = 0, *, max_bytes: int | None = None, home: Any = None) -> None:
        terms = Terms(max(whole("maxsize", maxsize), 0), limit("max_bytes", max_bytes), "never")
        self._become(*_ends.make_pair(terms, home))

    def _become(self, pair: Pair, sending: int, receiving: int) -> None:
        self._pair = pair
        self._sender, self._receiver = OfferedSender(pair, sending), OfferedReceiver(pair, receiving)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """`queue.Full` when there is no room in time. What is put may be pickled, and leave this machine."""
        self._sender.open().put(obj, block, timeout)

    def put_nowait(self, obj: Any) -> None:
        self.put(obj, False)

    def put_many(self, iterable: Any, timeout: float | None = None) -> int:
        """How many were put, in their order; fewer than there are when there was no room for more in time."""
        return int(self._sender.open().put_many(iterable, timeout))

    async def put_async(self, obj: Any, timeout: float | None = None) -> None:
        """`put` for coroutines. When it is cancelled, the object was not put."""
        await self._sender.open().put_async(obj, timeout)

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """`queue.Empty` when nothing comes in time. Large arrays are views, as in `shmtree.Receiver.get`."""
        return self._receiver.open().get(block, timeout, copy=copy)

    def get_nowait(self) -> Any:
        return self.get(False)

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """`get` for coroutines. It can be cancelled at any time without losing an object."""
        return await self._receiver.open().get_async(timeout, copy=copy)

    @property
    def maxsize(self) -> int:
        return self._pair.terms.capacity

    def qsize(self) -> int:
        """How many have come to the home, and nobody has got: those that a node has yet to send do not count."""
        if self.closed:
            raise ChannelClosed("this queue was closed")
        from . import _actors

        with told_of_end("this queue is no more, or Ray was shut down in this process"):
            return int(_actors.call(self._pair.home, "size", self._pair.number))

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    def close(self) -> None:
        """Ends the part of this object. May be called again."""
        self._sender.close()
        self._receiver.close()

    @property
    def closed(self) -> bool:
        return self._sender.closed

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self._pair, self._sender.give(), self._receiver.give())

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"home {self._pair.home}"
        return f"<{type(self).__name__}, {state}>"


def _arrive(pair: Pair, sending: int, receiving: int) -> Queue:
    queue = Queue.__new__(Queue)
    queue._become(Pair(*pair), sending, receiving)
    return queue
