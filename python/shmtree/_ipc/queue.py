"""Queues with the interface and behaviour of multiprocessing's, on a channel of which each process has both ends."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from .. import _core
from .._process import arenas, handles
from .._process.names import QUEUE, open_known
from ..errors import ChannelClosed, ShutDown
from . import waiting
from .arguments import limit, whole
from .channel import End, Rates, Terms, new_channel
from .queue_connections import QueueLock, QueueReader, QueueWriter

_T = TypeVar("_T")
_Q = TypeVar("_Q", bound="BaseQueue[Any]")


class HasArena(Protocol):
    """`shmtree.Arena`, which is built on top of this."""

    def _open(self) -> _core.Arena: ...


def _put_nowait(self: BaseQueue[_T], obj: _T, **options: Any) -> None:
    self.put(obj, False, **options)


def _get_nowait(self: BaseQueue[_T], **options: Any) -> _T:
    return self.get(False, **options)


class BaseQueue(_core.QueueBase[_T], End):
    """What the queues have in common.

    A queue may be used by several threads, inherited over fork, given to processes as an argument with any start
    method, and sent through pipes, queues and managers to processes that run already. Its messages live in shared
    memory from the moment `put` returns, whatever becomes of the process that put them, and go when nobody has the
    queue any more. Iteration goes on until the queue is shut down, and empty. A message that eight receivers in a row
    have no memory for moves to `rejected()`.
    """

    _maxsize = 0
    _rates: Rates

    def __init_subclass__(cls, **options: Any) -> None:
        """As with the standard classes, who replaces `put` or `get` has replaced `put_nowait` or `get_nowait` too."""
        super().__init_subclass__(**options)
        for name, replacement in (("put", _put_nowait), ("get", _get_nowait)):
            own = getattr(cls, name) is not getattr(_core.QueueBase, name)
            if own and getattr(cls, f"{name}_nowait") is getattr(_core.QueueBase, f"{name}_nowait"):
                setattr(cls, f"{name}_nowait", replacement)

    def _create(
        self,
        maxsize: int,
        max_bytes: int | None,
        name: str | None,
        arena: HasArena | None,
        allow_pickle: bool | None,
        portable: bool,
        exist_ok: bool,
    ) -> None:
        if exist_ok and name is None:
            raise ValueError("exist_ok requires a name")
        self._maxsize = max(whole("maxsize", maxsize), 0)
        if arena is not None and not hasattr(arena, "_open"):
            raise TypeError(f"arena is {arena!r}; it must be an Arena, or None")
        home = arena._open() if arena is not None else None
        terms = Terms(self._maxsize, limit("max_bytes", max_bytes), "never", portable=bool(portable))
        self._become(*new_channel(home, terms, allow_pickle, name, QUEUE, bool(exist_ok)))

    def _become(self, channel: _core.Channel, allow_pickle: bool, name: _core.Name | None) -> None:
        self._attach(channel, allow_pickle)
        self._maxsize = channel.capacity
        self._name = name
        self._rates = Rates()

    @classmethod
    def open(cls: type[_Q], name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> _Q:
        """The queue that another process of this user made with this name.

        Waits up to `timeout` seconds (None waits indefinitely) for somebody to make it: TimeoutError, or
        FileNotFoundError where
        that is 0. ValueError when it is the name of something else. Pickles are sent and loaded only if both this call
        and the maker of the queue say allow_pickle=True.
        """
        known = open_known(name, QUEUE, timeout)
        self = cls.__new__(cls)
        self._become(_core.Channel.open(known.arena, known.block), bool(allow_pickle), known)
        return self

    def handle(self) -> str:
        """A text by which another process of this user opens the queue: `open_handle` there, `Queue::open` in C++.

        The queue counts as on its way until it is opened, for as long as this process lives and 60 s longer.
        """
        handles.check_giveable(self, "a queue")
        self._channel.note_named()
        return handles.handle_of(self._channel, self._name, True).hex()

    @classmethod
    def open_handle(cls: type[_Q], text: str, *, allow_pickle: bool | None = None) -> _Q:
        """The queue that `handle()` gave this text for, in Python or C++.

        FileNotFoundError when nobody has it any more, ValueError for a text that is no queue's handle. Pickles are sent
        and loaded as `allow_pickle` says; None is yes for a queue without a name. The maker has to allow them, too.
        """
        with handles.open_channel(bytes.fromhex(text), None, True) as (channel, name):
            if not channel.is_queue:
                raise ValueError("this is the handle of a pair's end, and no queue's")
            self = cls.__new__(cls)
            allowed = name is None if allow_pickle is None else bool(allow_pickle)
            self._become(channel, allowed and channel.allows_pickle, name)
        return self

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> _T:
        """`get` for coroutines. It can be cancelled at any time without losing a message."""
        got: _T = await waiting.get_async(self, timeout, copy)
        return got

    def __aiter__(self: _Q) -> _Q:
        return self

    async def __anext__(self) -> _T:
        try:
            return await self.get_async()
        except (ChannelClosed, ShutDown):
            raise StopAsyncIteration from None

    async def put_async(self, obj: _T, timeout: float | None = None, *, move: bool = False) -> None:
        """`put` for coroutines. When it is cancelled, the object was not put."""
        await waiting.put_async(self, obj, timeout, move)

    def __getstate__(self) -> tuple[Any, ...]:
        handles.check_giveable(self, "a queue")
        return (*handles.describe_end(self._channel, self._name, (False, True)), self.allow_pickle)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        handle, inheritance, allow_pickle = state
        with handles.open_channel(handle, inheritance, True) as (channel, name):
            self._become(channel, allow_pickle, name)
            arenas.note_given(self)

    # What multiprocessing's own classes, and some programs, reach for.

    @property
    def _closed(self) -> bool:
        return self.closed

    @property
    def _reader(self) -> QueueReader:
        return QueueReader(self)

    @property
    def _writer(self) -> QueueWriter:
        return QueueWriter(self)

    @property
    def _rlock(self) -> QueueLock:
        return QueueLock(self, True)

    @property
    def _wlock(self) -> QueueLock:
        return QueueLock(self, False)

    def _poll(self, timeout: float | None = 0.0) -> bool:
        return self._reader.poll(timeout)


class Queue(BaseQueue[_T]):
    """`multiprocessing.Queue` in shared memory, to any number of processes from any number of them.

    Args:
        maxsize: objects in it before `put` waits; 0 or less is no limit.
        max_bytes: bytes in it before `put` waits; an object larger than that is refused with MessageTooLarge.
        name: makes it known to the user's other processes, for `Queue.open`. It gets an arena of its own unless one is
            given. FileExistsError when the name is in use.
        arena: where objects lie; None is the arena that this process makes for all channels.
        allow_pickle: whether objects without a native kind may be pickled; None is yes for unnamed and no for named
            queues, where both sides have to say yes.
        portable: whether `put` refuses what means something on this machine only, as `create_pair` has it.
        exist_ok: with a name that a queue has already, opens that one; ValueError, with the values of both, when it was
            made with other arguments.
        ctx: taken for the sake of multiprocessing's signature. A queue works with every start method.

    There is no thread behind it: `put` raises what is wrong with an object, and when it returns `empty`, `qsize` and
    `full` say so in every process.
    """

    def __init__(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        arena: HasArena | None = None,
        allow_pickle: bool | None = None,
        portable: bool = False,
        exist_ok: bool = False,
        ctx: object = None,
    ) -> None:
        self._create(maxsize, max_bytes, name, arena, allow_pickle, portable, exist_ok)

    def join_thread(self) -> None:
        """Nothing: there is no thread, and what was put is in the queue already."""
        if not self.closed:
            raise AssertionError(f"Queue {self!r} not closed")

    def cancel_join_thread(self) -> None:
        """Nothing: there is no thread that a process would wait for at its exit."""


class JoinableQueue(Queue[_T]):
    """A Queue that counts what was put and what was dealt with."""

    _counts_tasks = True

    def task_done(self) -> None:
        """One more of the objects got was dealt with; ValueError when there were not that many.

        Objects among `rejected()` need no call: they count as done, and stay so when their Delivery is acknowledged.
        """
        self._task_done()

    def join(self, timeout: float | None = None) -> None:
        """Waits until every object put was dealt with; TimeoutError after `timeout` seconds (None: never).

        An object that was given up, and is among `rejected()`, counts as dealt with until it is requeued. A process
        that is killed between `get` and `task_done` leaves its object undone, as with the standard queue.
        After `close` it goes on waiting while other processes have the queue; ChannelClosed when none has, and when it
        begins after the last `close` of this process.
        """
        self._join_tasks(timeout)


class SimpleQueue(BaseQueue[_T]):
    """`multiprocessing.SimpleQueue` in shared memory: `put` and `get` without a limit, and what Queue has besides."""

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        arena: HasArena | None = None,
        allow_pickle: bool | None = None,
        portable: bool = False,
        exist_ok: bool = False,
        ctx: object = None,
    ) -> None:
        self._create(0, max_bytes, name, arena, allow_pickle, portable, exist_ok)
