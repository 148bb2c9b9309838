"""A queue for all nodes."""

from __future__ import annotations

from typing import Any

from .._ipc.arguments import limit, whole
from ..errors import ChannelClosed
from . import _ends
from ._deaths import told_of_end
from ._ends import Pair
from ._pairs import OfferedReceiver, OfferedSender


class Queue:
    """A `shmtree.Queue` across nodes. Any task or actor that gets it can put and get; the queue never ends.

    It has the methods of `multiprocessing.Queue` and of `ray.util.queue.Queue`, with their exceptions `queue.Full` and
    `queue.Empty`. Each object is returned once; objects of one process keep their order. The queue exists while any
    process has it, or it is in transit; the objects in it are dropped with it. Thread-safe.

    Args:
        maxsize: Number of objects in the queue at which `put` blocks. The limit applies separately at the home and on
            each other node; 0 or less means no limit.
        max_bytes: The same limit in bytes; None means no limit.
        home: Where objects are stored, as in `create_pair`. Choose the node that gets most of them. None is this node.
    """

    def __init__(self, maxsize: int = 0, *, max_bytes: int | None = None, home: Any = None) -> None:
        limits = {"capacity": max(whole("maxsize", maxsize), 0), "max_bytes": limit("max_bytes", max_bytes)}
        terms = {"kind": "queue", **limits, "on_peer_death": "wait"}
        self._become(*_ends.make_pair(terms, home))

    def _become(self, pair: Pair, sending: int, receiving: int) -> None:
        self._pair = pair
        self._sender, self._receiver = OfferedSender(pair, sending), OfferedReceiver(pair, receiving)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object, which may be pickled and may leave this machine.

        Args:
            obj: The object.
            block: If False, does not wait.
            timeout: Seconds to wait for space; None waits indefinitely.

        Raises:
            queue.Full: There was no space within `timeout` seconds.
        """
        self._sender.open().put(obj, block, timeout)

    def put_nowait(self, obj: Any) -> None:
        """Calls `put` without waiting."""
        self.put(obj, False)

    def put_many(self, iterable: Any, timeout: float | None = None) -> int:
        """Puts objects in order.

        Args:
            iterable: The objects.
            timeout: Seconds to wait for space; None waits indefinitely.

        Returns:
            The number of objects that were put, which is smaller if there was no space for more in time.
        """
        return int(self._sender.open().put_many(iterable, timeout))

    async def put_async(self, obj: Any, timeout: float | None = None) -> None:
        """Does the same as `put` in a coroutine. If it is cancelled, the object was not put."""
        await self._sender.open().put_async(obj, timeout)

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """Returns the next object.

        Args:
            block: If False, does not wait.
            timeout: Seconds to wait for an object; None waits indefinitely.
            copy: See `shmtree.Receiver.get`.

        Raises:
            queue.Empty: No object arrived within `timeout` seconds.
        """
        return self._receiver.open().get(block, timeout, copy=copy)

    def get_nowait(self) -> Any:
        """Calls `get` without waiting."""
        return self.get(False)

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """Does the same as `get` in a coroutine. It can be cancelled at any time without losing an object."""
        return await self._receiver.open().get_async(timeout, copy=copy)

    @property
    def maxsize(self) -> int:
        """Number of objects in the queue at which `put` blocks; 0 means no limit."""
        return int(self._pair.terms["capacity"])

    def qsize(self) -> int:
        """Returns the number of objects that are in the queue at its home.

        Objects that other nodes have not yet sent to the home do not count.

        Raises:
            ChannelClosed: This object was closed, or the queue no longer exists.
        """
        if self.closed:
            raise ChannelClosed("this queue is closed")
        from . import _actors

        with told_of_end("this queue is no more, or Ray was shut down in this process"):
            return int(_actors.call(self._pair.home, "size", self._pair.number))

    def empty(self) -> bool:
        """Returns True if `qsize` is 0."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Returns True if `qsize` has reached `maxsize`."""
        return 0 < self.maxsize <= self.qsize()

    def close(self) -> None:
        """Closes this object. Idempotent."""
        self._sender.close()
        self._receiver.close()

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
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
