"""Messages that every reader sees."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._codec import tensors
from .._process import handles
from .._process.names import BROADCAST
from ..errors import ChannelClosed
from .arena import Arena
from .arguments import limit, natural, one_of, seconds, whole
from .polling import poll
from .publisher import Published

if TYPE_CHECKING:
    from typing_extensions import Self

FallBehind = Literal["block", "skip", "latest", "raise"]


class Broadcast(Published, _core.BroadcastBase):
    """One ring of messages, of which every subscriber sees each: frames to several consumers, events to everybody.

    A message is copied once, however many read it. `subscribe` gives a reader with its own place, from any process that
    has the Broadcast, at any time. `put` waits for no reader but those that subscribed to miss nothing
    (``behind="block"``), and for those only while they live. Arrays arrive read-only, since all readers have the same
    memory.

    It can be used from several threads and processes, any number of them putting and reading. It pickles, as
    subscriptions do: as an argument of Process, through a pipe or queue, and in messages.

    A process puts from its first `put` until it closes its last object of the Broadcast, drops it, or ends. When nobody
    is left who puts, subscribers get what is there, and then ChannelClosed (iteration stops); PeerDied if one of those
    who did was killed, until somebody puts again.

    Args:
        capacity: messages that the slowest blocking reader may be behind; and as many are there for those that fall
            behind.
        max_bytes: of the messages that the slowest blocking reader has not read; a larger one goes when it has all.
        history: how many messages are kept for those who subscribe later, though all have read them.
        name, arena, allow_pickle, exist_ok: as of `Latest`.
        on_peer_death: "wait": subscribers wait for whoever puts next, there is no end.
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
        exist_ok: bool = False,
    ) -> None:
        if whole("capacity", capacity) < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        natural("history", history)
        waits = one_of("on_peer_death", on_peer_death, "raise", "wait") == "wait"
        allow = name is None if allow_pickle is None else bool(allow_pickle)
        terms = (capacity, history, limit("max_bytes", max_bytes), allow, waits)
        self._create(name, arena, exist_ok, allow, *terms)

    @property
    def _thing(self) -> _core.Ring:
        return self._ring

    def subscribe(
        self,
        start: Literal["next", "oldest"] = "next",
        behind: FallBehind = "block",
        timeout: float | None = None,
    ) -> Subscriber:
        """A reader of what is put from now on, or from the oldest message that is there.

        `behind` says what happens when it is slower than those who put. "block": they wait for it. "skip": it misses
        what was overwritten, and finds the last `capacity` messages. "latest": it finds the last one. "raise": as
        "skip", and it is told by an `Overrun`.

        The subscription may be handed to other processes. Until its first `get`, every process that has it is attached,
        and it ends when the last of them has closed it or exited. From then on, only the process that called `get` is
        attached.

        Waits only if a process was stopped while it had the lock of this Broadcast or of its arena: TimeoutError after
        `timeout` seconds (None: never) names that process. ValueError if there are 256 subscriptions already,
        OutOfSharedMemory if the arena has no memory for one now.
        """
        from_oldest = one_of("start", start, "next", "oldest") == "oldest"
        one_of("behind", behind, "block", "skip", "latest", "raise")
        return Subscriber._of(self._subscribe(behind, from_oldest, timeout), self._name)

    def put(self, obj: object, block: bool = True, timeout: float | None = None, *, move: bool = False) -> int:
        """Puts a message for all subscribers, and returns its ticket. It succeeds without any.

        Waits while a live blocking reader is `capacity` messages behind, for at most `timeout` seconds (None: forever;
        block=False: not at all). Then raises queue.Full, which names the reader's process; or TimeoutError, which names
        a stopped process that has the lock of this Broadcast or of its arena. You may change the object afterwards, but
        not arrays of `new_empty`. Other errors are those of `Sender.put`, without PeerDied.
        """
        return self._put(obj, block, timeout, move)

    def put_nowait(self, obj: object, *, move: bool = False) -> int:
        """`put` that does not wait: queue.Full when there is no room now."""
        return self._put(obj, False, None, move)

    def put_many(self, iterable: Iterable[object], timeout: float | None = None) -> int:
        """Puts every item, in order, and returns how many; `timeout` is for all. Errors have the number as `sent`."""
        deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        sent = 0
        try:
            for item in iterable:
                self._put(item, True, None if deadline is None else max(deadline - time.monotonic(), 0), False)
                sent += 1
        except Exception as error:
            error.sent = sent  # type: ignore[attr-defined]
            raise
        return sent

    async def put_async(self, obj: object, timeout: float | None = None, *, move: bool = False) -> int:
        """`put` for coroutines. When it is cancelled, the object was not put."""
        return await poll(
            lambda: self._put(obj, False, None, move),
            lambda: not self.has_space(),
            timeout,
            not_yet=(queue.Full, TimeoutError),  # who was stopped with the arena's lock may go on
        )

    def wait_for_all_ack(self, timeout: float | None = None) -> None:
        """Waits until all blocking readers have read what this object has put. TimeoutError."""
        self._wait_until_passed(None, timeout)

    def wait_for_ack(self, ticket: int, timeout: float | None = None) -> None:
        """Waits until all blocking readers have read that message, and those before it. TimeoutError."""
        self._wait_until_passed(natural("ticket", ticket), timeout)

    def stats(self) -> dict[str, Any]:
        """Counts: put, capacity, history, kept (messages that one who may fall behind finds), subscribers, publishers
        (pids of those who put), pickled (what this object has put that needed a pickle)."""
        return self._stats()

    @property
    def capacity(self) -> int:
        """Messages that the slowest blocking reader may be behind before `put` waits."""
        return self._ring.capacity


class Subscriber:
    """A reader of a Broadcast, with its own place; made by `Broadcast.subscribe`.

    `shmtree.wait` takes it as it does a receiver. Several threads may read by it, each message going to one of them.

    One process may make a subscription and another may use it. Until its first `get`, every process that made it,
    inherited it over fork, was started with it, or loaded it is attached. The subscription ends when the last attached
    process has closed or dropped it, or has exited. From the first `get` on, only the process that called `get` is
    attached, and it cannot hand the subscription on. A subscription in transit through a pipe or queue lasts until it
    arrives, or until its sender closes it or exits, so do not close it before it has arrived. After that, it ends with
    the process that received it.
    """

    __slots__ = ("__weakref__", "_end", "_failed", "_name")
    _end: _core.SubscriberBase
    _name: _core.Name | None
    _failed: BaseException | None  # of a message that get_many() came to behind others

    def __init__(self) -> None:
        raise TypeError("subscribers are made by Broadcast.subscribe()")

    @classmethod
    def _of(cls, end: _core.SubscriberBase, name: _core.Name | None) -> Subscriber:
        self = cls.__new__(cls)
        self._end = end
        self._name = name
        self._failed = None
        return self

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """The next message; queue.Empty when none came within `timeout` seconds (None: for ever; block=False: at once).

        Arrays are read-only views, tensors copies; past half of the budget all are copies, as with `Latest.get`.
        Overrun, with `.missed`, when messages were
        overwritten and the subscription is to be told of it. ChannelClosed when nobody is left who puts, PeerDied when
        one of those who did was killed.

        MemoryError if this process has no memory for the message. The message is kept: the next call returns it, or a
        newer one with `behind="latest"`. After eight failures in a row it is given up, and counts as missed.
        SystemExit and GeneratorExit of code that unpickles count as failures too. KeyboardInterrupt and exceptions of
        signal handlers do not, but the message is kept.
        """
        self._raise_failed()
        return self._end._get(block, timeout, copy)

    def get_nowait(self, *, copy: bool | None = None) -> Any:
        """`get` that does not wait: queue.Empty when there is nothing now."""
        return self.get(False, copy=copy)

    def get_many(self, n: int, timeout: float | None = None, *, copy: bool | None = None) -> list[Any]:
        """A list of 1 to n messages: waits for the first as `get` does, and takes what else is there.

        An error that is another message's than the first is the next call's.
        """
        self._raise_failed()
        items, self._failed = self._end._get_many(n, timeout, copy)
        return items

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed.with_traceback(None)

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        """`get` for coroutines. It can be cancelled at any time without losing a message."""
        return await poll(lambda: self.get(False, copy=copy), lambda: self.qsize() == 0, timeout)

    def get_to(self, device: Any, block: bool = True, timeout: float | None = None) -> Any:
        """`get` with the message's tensors, and its numeric arrays as tensors, copied to a device of torch.

        As `Receiver.get_to`, but a message that cannot be copied is passed all the same, as others have it, too.
        """
        tensors.library.check_device(device)
        arena = self._end._arena
        return tensors.library.receive_to(arena, self.get(block, timeout, copy=False), device)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.get()
        except ChannelClosed:
            raise StopIteration from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get_async()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def fileno(self) -> int:
        """A descriptor that can be read while there is a message, or nobody is left who puts: for poll loops.

        It belongs to this object. To ask for it is to use the subscription: it is this process's from then on. In a
        program with several threads that read, a message may be gone again when it is looked for. The death of who puts
        is seen by `shmtree.wait`, and by calls that wait. Each subscriber has a pipe of its own: the limit of 4,096
        watched ends is one of channels. Raises ChannelClosed if another process uses the subscription, and OSError if
        there is no descriptor left.
        """
        return self._end.fileno()

    def _open_to_wait(self) -> tuple[int, bool]:
        return self._end._open_to_wait()

    def _close_after_wait(self) -> None:
        self._end._close_after_wait()

    def _ready(self) -> bool:
        return self._failed is not None or self._end._ready()

    def qsize(self) -> int:
        """Number of messages that it can read now."""
        return self._end.qsize()

    def empty(self) -> bool:
        """Whether there is none."""
        return self.qsize() == 0

    @property
    def missed(self) -> int:
        """Number of messages missed so far: overwritten, given up, or replaced by a newer one (`behind="latest"`)."""
        return self._end.missed

    @property
    def closed(self) -> bool:
        """Whether close() was called on this object."""
        return self._end.closed

    def close(self) -> None:
        """Ends this process's part; nobody waits for it any more, but for one that other processes have as well, and
        none of them has used. Views stay valid. May be called again."""
        self._end.close()
        self._name = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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
