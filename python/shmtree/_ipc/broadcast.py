"""Broadcast: a ring of messages that each subscriber receives in full."""

from __future__ import annotations

import functools
import queue
from typing import TYPE_CHECKING, Any, Literal, cast

from .. import _core
from .._codec import tensors
from .._process import handles
from .._process.names import BROADCAST
from .._public import made_by
from .arena import Arena
from .channel import KeepOpen, home_of
from .ends import ReceivingEnd, shown
from .item_type import T
from .publisher import Published
from .stats import BroadcastStats
from .waiting import in_turn
from .wake_hub import Awaited, until_usable

if TYPE_CHECKING:
    from typing_extensions import Self

# Interval of the attempts of a coroutine while a stopped process holds the lock.
_LOCKED_S = 0.025

OnLag = Literal["block", "skip", "latest", "raise"]


class Broadcast(Published, _core.BroadcastBase[T]):
    """A ring of messages, each of which every subscriber receives: frames for several consumers, or events for all.

    `put` copies a message once, however many subscribers read it. Any process that has the Broadcast can subscribe at
    any time; each subscriber has its own position. `put` blocks only for subscribers with ``on_lag="block"``, and only
    while they live. Arrays arrive read-only, because all subscribers share the same memory.

    Several threads and processes may put and subscribe at the same time. A Broadcast and its subscriptions can be
    pickled as an argument of Process, through a pipe or queue, and in messages.

    A process is a publisher from its first `put` until it closes or drops its last object of the Broadcast, or exits.
    If no publisher is left, subscribers receive the remaining messages and then ChannelClosed (iteration stops), or
    PeerDied if one was killed or failed. They continue when another process puts. Before the first message, the process
    that made the Broadcast counts as a publisher until it closes it. Each process that opened or inherited it also
    counts, unless it waits for a message itself.

    Args:
        capacity: Number of messages by which the slowest blocking subscriber may lag. A subscriber that does not block
            and falls behind can still read that many of the newest messages.
        max_bytes: Limit for the bytes of the messages that the slowest blocking subscriber has not read. A larger
            message passes when that subscriber has read everything.
        history: Number of messages that are kept for later subscribers even if every subscriber has read them.
        name, arena, allow_pickle, exist_ok: See `Latest`.
        on_peer_death: What subscribers do if no publisher is left. "raise" (default): the stream ends. "wait": wait for
            the next publisher; the stream has no end.
        keep_open: True and "both" do the same as ``on_peer_death="wait"``.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: `capacity` is less than 1, or the Broadcast of that name was made with other arguments (the error
            has both values).

    Example::

        frames = shmtree.Broadcast(capacity=16)      # pass it to the consumers
        frames.put({"camera": image})                # in the process that produces them
        for frame in frames.subscribe(): ...         # in each consumer
    """

    _KIND, _SHARED = BROADCAST, _core.Ring

    def __init__(
        self,
        capacity: int = 8,
        *,
        max_bytes: int | None = None,
        history: int = 0,
        name: str | None = None,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
        on_peer_death: Literal["raise", "wait"] = "raise",
        keep_open: KeepOpen = False,
        exist_ok: bool = False,
    ) -> None:
        options = capacity, max_bytes, history, name, home_of(arena, name), allow_pickle
        self._attach(*_core.make_broadcast(*options, on_peer_death, keep_open, exist_ok))

    def subscribe(
        self,
        start: Literal["next", "oldest"] = "next",
        on_lag: OnLag = "block",
        timeout: float | None = None,
    ) -> Subscriber[T]:
        """Subscribes to the messages that are put from now on, or from the oldest one in the ring.

        The subscription may be handed to other processes. Until its first `get`, every process that has it is attached,
        and it ends when the last of them has closed it or exited. From then on, only the process that called `get` is
        attached. The call blocks only if a process was stopped while it held the lock of this Broadcast or of its
        arena.

        Args:
            start: "next" begins with the next message, "oldest" with the oldest message in the ring.
            on_lag: What happens if the subscriber is slower than the publishers. "block": publishers wait for it.
                "skip": it misses the messages that were overwritten, and continues with the last `capacity` messages.
                "latest": it continues with the newest message. "raise": like "skip", and `get` raises `Overrun`.
            timeout: Seconds to wait for the lock; None waits indefinitely.

        Returns:
            A Subscriber.

        Raises:
            TimeoutError: A stopped process held the lock for `timeout` seconds; the error names the process.
            ValueError: There are 256 subscriptions already.
            OutOfSharedMemory: The arena has no memory for a subscription now.

        Example::

            subscriber = frames.subscribe(on_lag="latest")
            for frame in subscriber:  # until no publisher is left
                show(frame["camera"])
        """
        return self._subscribe(Subscriber, start, on_lag, timeout)

    async def put_async(self, obj: T, timeout: float | None = None, *, move: bool = False) -> int:
        """Does the same as `put` in a coroutine. If it is cancelled, the object was not put.

        If several coroutines of a loop wait, they put in the order of their calls.
        """
        import asyncio

        first_unread = 0
        is_locked = False

        def put_now() -> int:
            nonlocal first_unread, is_locked
            first_unread = self._first_unread()
            is_locked = False
            try:
                return self.put_nowait(obj, move=move)
            except TimeoutError:
                is_locked = True
                raise

        async def pause(rest: float | None) -> None:
            if is_locked:  # by a process that was stopped; no wake-up reports that it continues
                await asyncio.sleep(_LOCKED_S if rest is None else min(rest, _LOCKED_S))
            else:
                ask = functools.partial(self._await_to_put, first_unread)
                is_ready = functools.partial(self._ready_to_put, first_unread)
                await until_usable(Awaited((self._name_to_put(), id(self)), ask, is_ready), rest)

        return await in_turn(self, put_now, (queue.Full, TimeoutError), pause, timeout)

    def stats(self) -> BroadcastStats:
        """Returns counts of the Broadcast.

        Returns:
            A dict with `put`, `capacity`, `history`, `kept` (messages that a non-blocking subscriber finds),
            `subscribers`, `publishers` (their pids), and `pickled` (messages that this object has put and that needed a
            pickle).
        """
        return cast("BroadcastStats", self._stats())

    def __repr__(self) -> str:
        return shown(self, lambda: "{put} put, {subscribers} subscribed".format(**self._stats()))


@made_by("Broadcast.subscribe()")
class Subscriber(_core.SubscriberBase[T], ReceivingEnd[T]):
    """The reading end of a Broadcast, with its own position; made by `Broadcast.subscribe`.

    `shmtree.wait` accepts it like a receiver. Several threads may read from it; each message goes to one of them.

    One process may make a subscription and another may use it. Until its first `get`, every process that made it,
    inherited it over fork, was started with it, or unpickled it is attached. The subscription ends when the last
    attached process has closed or dropped it, or has exited. From the first `get` on, only the process that called
    `get` is attached, and it cannot hand the subscription on.

    A subscription in transit through a pipe or queue lasts until it arrives, or until its sender closes it or exits, so
    do not close it before it has arrived. After that, it ends with the process that received it.
    """

    __slots__ = ("__weakref__",)

    @classmethod
    def _of(cls, arena: _core.Arena, block: int, allow_pickle: bool, name: _core.Name | None) -> Self:
        self = _core.SubscriberBase.__new__(cls)
        self._attach(arena, block, allow_pickle, name)
        return self

    def get_to(self, device: Any, block: bool = True, timeout: float | None = None) -> Any:
        """Returns the next message with its tensors, and its numeric arrays as tensors, copied to a torch device.

        It works like `Receiver.get_to`, except that a message that cannot be copied is skipped: other subscribers have
        it, too.

        Args:
            device: A torch device, or its name.
            block: If False, does not wait.
            timeout: Seconds to wait at most; None waits indefinitely.

        Returns:
            The message, with tensors on the device.

        Raises:
            queue.Empty: No message came in time. The other errors are those of `get`.
            DeviceError: The device does not exist; no message is read.
        """
        tensors.library.check_device(device)
        return tensors.library.receive_to(self._arena, self.get(block, timeout, copy=False), device)

    def __repr__(self) -> str:
        return shown(self, lambda: f"{self.qsize()} unread, {self.missed} missed")

    def __reduce__(self) -> tuple[Any, ...]:
        arena, block = self._give()
        return _open_subscriber, (*handles.reduce_memory(arena, block, self._name), self.allow_pickle)


def _open_subscriber(handle: bytes, inheritance: Any, allow_pickle: bool) -> Subscriber:
    return handles.open_memory(
        handle, inheritance, lambda arena, block, name: Subscriber._of(arena, block, allow_pickle, name)
    )
