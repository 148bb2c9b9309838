"""Broadcast: a ring of messages that each subscriber receives in full."""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from .. import _core
from .._codec import tensors
from .._process import handles
from .._process.names import BROADCAST
from .._public import made_by
from ..errors import ChannelClosed
from .arena import Arena
from .arguments import deadline_after, left, limit, natural, one_of, whole
from .channel import KeepOpen, checked_keep_open, shown
from .item_type import T
from .publisher import Published
from .stats import BroadcastStats
from .waiting import in_turn, next_async, receive_async
from .wake_hub import Awaited, until_usable, wake_waiting

if TYPE_CHECKING:
    from typing_extensions import Self

# Interval of the attempts of a coroutine while a stopped process holds the lock.
_LOCKED_S = 0.025

OnLag = Literal["block", "skip", "latest", "raise"]


class Broadcast(Published, _core.BroadcastBase, Generic[T]):
    """A ring of messages, each of which every subscriber receives: frames for several consumers, or events for all.

    `put` copies a message once, however many subscribers read it. Any process that has the Broadcast can subscribe at
    any time; each subscriber has its own position. `put` blocks only for subscribers with ``on_lag="block"``, and only
    while they live. Arrays arrive read-only, because all subscribers share the same memory.

    Several threads and processes may put and subscribe at the same time. A Broadcast and its subscriptions can be
    pickled as an argument of Process, through a pipe or queue, and in messages.

    A process is a publisher from its first `put` until it closes or drops its last object of the Broadcast, or exits.
    If no publisher is left, subscribers receive the remaining messages and then ChannelClosed (iteration stops), or
    PeerDied if one was killed or failed. They continue when another process puts. Before the first message, the process
    that made the Broadcast counts as a publisher, and so does each that opened or inherited it, unless it waits for a
    message itself.

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

    _WHAT, _KIND, _THING, _BASE = "Broadcast", BROADCAST, _core.Ring, _core.BroadcastBase

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
        if whole("capacity", capacity) < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        natural("history", history)
        keeps = checked_keep_open(keep_open) is not False
        waits = one_of("on_peer_death", on_peer_death, "raise", "wait") == "wait" or keeps
        allow = name is None if allow_pickle is None else bool(allow_pickle)
        terms = (capacity, history, limit("max_bytes", max_bytes), allow, waits)
        self._create(name, arena, exist_ok, allow, *terms)

    @property
    def _thing(self) -> _core.Ring:
        return self._ring

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
        from_oldest = one_of("start", start, "next", "oldest") == "oldest"
        one_of("on_lag", on_lag, "block", "skip", "latest", "raise")
        return Subscriber._of(self._subscribe(on_lag, from_oldest, timeout), self._name)

    def put(self, obj: T, block: bool = True, timeout: float | None = None, *, move: bool = False) -> int:
        """Puts a message for all subscribers. It succeeds without subscribers, too.

        Blocks while a live blocking subscriber is `capacity` messages behind. You may change the object afterwards,
        except arrays of `new_empty`.

        Args:
            obj: The message.
            block: If False, does not wait.
            timeout: Seconds to wait at most; None waits indefinitely.
            move: See `Sender.put`.

        Returns:
            The ticket of the message for `wait_for_ack`, a number that counts from 0.

        Raises:
            queue.Full: There was no space in time; the error names the subscriber's process.
            TimeoutError: A stopped process held the lock of this Broadcast or of its arena; the error names the
                process.

        Other errors are those of `Sender.put`, without PeerDied.
        """
        return self._put(obj, block, timeout, move)

    def put_nowait(self, obj: T, *, move: bool = False) -> int:
        """Calls `put` without waiting.

        Args:
            obj: The message.
            move: See `Sender.put`.

        Returns:
            The ticket of the message.

        Raises:
            queue.Full: There is no space now. The other errors are those of `put`.
        """
        return self._put(obj, False, None, move)

    def put_many(self, iterable: Iterable[T], timeout: float | None = None) -> int:
        """Puts every item in order.

        Args:
            iterable: The messages.
            timeout: Seconds to wait for space, for all items together; None waits indefinitely.

        Returns:
            The number of items.

        Raises:
            queue.Full: Not all items were put within `timeout` seconds. This and every other error has the number of
                items that were put as its attribute `sent`.
        """
        deadline = deadline_after(timeout)
        sent = 0
        try:
            for item in iterable:
                self._put(item, True, left(deadline), False)
                sent += 1
        except Exception as error:
            error.sent = sent  # type: ignore[attr-defined]
            raise
        return sent

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
                return self._put(obj, False, None, move)
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

    def wait_for_subscribers(self, n: int, timeout: float | None = None) -> None:
        """Blocks until there are at least `n` subscriptions, so that their subscribers get the next message.

        Args:
            n: Number of subscriptions.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: There are fewer after `timeout` seconds; the error has both numbers.
        """
        self._wait_for_subscribers(natural("n", n), timeout)

    def wait_for_all_ack(self, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read what this object has put.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has unread messages after `timeout` seconds.
        """
        self._wait_until_passed(None, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read what this object has put, as `wait_for_all_ack`.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has unread messages after `timeout` seconds.
        """
        self.wait_for_all_ack(timeout)

    def wait_for_ack(self, ticket: int, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read the message of this ticket, and all earlier ones.

        Args:
            ticket: Result of `put`.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has not read the message after `timeout` seconds.
        """
        self._wait_until_passed(natural("ticket", ticket), timeout)

    def stats(self) -> BroadcastStats:
        """Returns counts of the Broadcast.

        Returns:
            A dict with `put`, `capacity`, `history`, `kept` (messages that a non-blocking subscriber finds),
            `subscribers`, `publishers` (their pids), and `pickled` (messages that this object has put and that needed a
            pickle).
        """
        return cast("BroadcastStats", self._stats())

    @property
    def capacity(self) -> int:
        """Number of messages by which the slowest blocking subscriber may lag before `put` blocks."""
        return self._ring.capacity

    def __repr__(self) -> str:
        return shown(self, lambda: "{put} put, {subscribers} subscribed".format(**self._stats()))


@made_by("Broadcast.subscribe()")
class Subscriber(Generic[T]):
    """The reading end of a Broadcast, with its own position; made by `Broadcast.subscribe`.

    `shmtree.wait` accepts it like a receiver. Several threads may read from it; each message goes to one of them.

    One process may make a subscription and another may use it. Until its first `get`, every process that made it,
    inherited it over fork, was started with it, or unpickled it is attached. The subscription ends when the last
    attached process has closed or dropped it, or has exited. From the first `get` on, only the process that called
    `get` is attached, and it cannot hand the subscription on.

    A subscription in transit through a pipe or queue lasts until it arrives, or until its sender closes it or exits, so
    do not close it before it has arrived. After that, it ends with the process that received it.
    """

    __slots__ = ("__weakref__", "_end", "_failed", "_name")
    _end: _core.SubscriberBase
    _name: _core.Name | None
    _failed: BaseException | None  # raised for a message behind the first one of get_many(); the next call raises it

    @classmethod
    def _of(cls, end: _core.SubscriberBase, name: _core.Name | None) -> Self:
        self = cls.__new__(cls)
        self._end = end
        self._name = name
        self._failed = None
        return self

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> T:
        """Returns the next message.

        Arrays are read-only views, and tensors are copies. Once pinned blocks exceed half of the arena's budget,
        everything is copied, as with `Latest.get`.

        Args:
            block: If False, does not wait.
            timeout: Seconds to wait at most; None waits indefinitely.
            copy: See `Latest.get`.

        Returns:
            The message.

        Raises:
            queue.Empty: No message came in time.
            Overrun: Messages were overwritten, and the subscription has `on_lag="raise"`; `.missed` has their number.
            ChannelClosed: No publisher is left.
            shmtree.PeerDied: No publisher is left, and one was killed or failed.
            MemoryError: This process has no memory for the message. The message is kept: the next call returns it, or a
                newer one with `on_lag="latest"`. After eight failures in a row the message is skipped, and counts as
                missed. SystemExit and GeneratorExit of code that unpickles count as failures, too. KeyboardInterrupt
                and exceptions of signal handlers do not count, and the message is kept.
        """
        self._raise_failed()
        got: T = self._end._get(block, timeout, copy)
        return got

    def get_nowait(self, *, copy: bool | None = None) -> T:
        """Calls `get` without waiting.

        Args:
            copy: See `Latest.get`.

        Returns:
            The message.

        Raises:
            queue.Empty: There is no message now. The other errors are those of `get`.
        """
        return self.get(False, copy=copy)

    def get_many(self, n: int, timeout: float | None = None, *, copy: bool | None = None) -> list[T]:
        """Returns up to `n` messages: waits for the first one as `get` does, and takes the others that are there.

        Args:
            n: Maximum number of messages, at least 1.
            timeout: Seconds to wait for the first one; None waits indefinitely.
            copy: See `Latest.get`.

        Returns:
            A list of 1 to `n` messages.

        Raises:
            queue.Empty: No message came in time. The other errors are those of `get`. If a message other than the
                first one fails, the next call raises its error.
        """
        self._raise_failed()
        items, self._failed = self._end._get_many(n, timeout, copy)
        return items

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed.with_traceback(None)

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> T:
        """Does the same as `get` in a coroutine. It can be cancelled at any time without losing a message."""
        return await receive_async(self, functools.partial(self.get_nowait, copy=copy), timeout)

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
        arena = self._end._arena
        return tensors.library.receive_to(arena, self.get(block, timeout, copy=False), device)

    #: `x in subscriber` raises TypeError. By iteration, it would receive every message.
    __contains__ = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self.get()
        except ChannelClosed:
            raise StopIteration from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await next_async(self.get_async)

    def fileno(self) -> int:
        """Returns a descriptor that is readable while there is a message or no publisher is left, for poll loops.

        The descriptor belongs to this object. Calling `fileno` counts as use: from then on, only this process is
        attached to the subscription. If several threads read, another one may have taken the message that made the
        descriptor readable. The descriptor does not report the death of a publisher; `shmtree.wait` and blocking calls
        do. Each subscriber has its own pipe, so the limit of 4,096 watched ends of channels does not apply.

        Raises:
            ChannelClosed: Another process uses the subscription.
            OSError: No descriptor is left.
        """
        return self._end.fileno()

    def _name_to_get(self) -> bytes:
        return self._end._name_to_get()

    def _await_to_get(self, hub: _core.WakeHub) -> bool:
        return self._failed is not None or self._end._await_to_get(hub)

    def _note_wait_to_get(self, seconds: float) -> None:
        """A subscriber warns of no wait."""

    def _open_to_wait(self) -> tuple[int, bool]:
        return self._end._open_to_wait()

    def _close_after_wait(self) -> None:
        self._end._close_after_wait()

    def _ready(self) -> bool:
        return self._failed is not None or self._end._ready()

    def qsize(self) -> int:
        """Returns the number of messages that the subscriber can read now."""
        return self._end.qsize()

    def empty(self) -> bool:
        """Returns True if there is no message to read."""
        return self.qsize() == 0

    @property
    def missed(self) -> int:
        """Number of messages missed so far.

        A message is missed if it was overwritten, skipped after failures, or replaced by a newer one
        (`on_lag="latest"`).
        """
        return self._end.missed

    @property
    def closed(self) -> bool:
        """True if close() was called on this object."""
        return self._end.closed

    def close(self) -> None:
        """Closes this object. Publishers no longer wait for it, and received views stay valid. Idempotent.

        The subscription continues if other processes have it as well and no process has used it yet.
        """
        self._end.close()
        self._name = None
        wake_waiting(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return shown(self, lambda: f"{self.qsize()} unread, {self.missed} missed")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ChannelClosed("a Subscriber that was closed cannot be handed to another process")
        arena, block = self._end._give()
        handle = handles.reduce_memory(arena, block, self._name)
        return _open_subscriber, (*handle, self._end.allow_pickle)


def _open_subscriber(handle: bytes, inheritance: Any, allow_pickle: bool) -> Subscriber:
    def opens(arena: _core.Arena, block: int, name: _core.Name | None) -> Subscriber:
        return Subscriber._of(_core.SubscriberBase(arena, block, allow_pickle), name)

    return handles.open_memory(handle, inheritance, opens)
