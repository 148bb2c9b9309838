"""Queues with the interface and behaviour of multiprocessing's, on a channel of which each process has both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import _core
from .._process import arenas, handles
from .._process.names import QUEUE, open_name
from . import waiting
from .channel import ChannelEnd, ChannelOptions, Rates, home_of
from .ends import ReceivingEnd
from .queue_connections import QueueLock, QueueReader, QueueWriter

if TYPE_CHECKING:
    from typing_extensions import Self

    from .arena import Arena

_T = TypeVar("_T")

#: Effect of killed processes on a call of a queue that no other process can end any more.
OnQueuePeerDeath = Literal["wait", "raise"]


class QueueOptions(ChannelOptions, total=False):
    """Options of all queues, besides `arena` and the maximum size."""

    on_peer_death: OnQueuePeerDeath


def _put_nowait(self: BaseQueue[_T], obj: _T, **options: Any) -> None:
    self.put(obj, False, **options)


def _get_nowait(self: BaseQueue[_T], **options: Any) -> _T:
    return self.get(False, **options)


class BaseQueue(_core.QueueBase[_T], ReceivingEnd[_T], ChannelEnd):
    """Base of all queues.

    Several threads may use a queue. It can be inherited over fork, passed to processes as an argument with any start
    method, and sent through pipes, queues and managers to running processes. A message is in shared memory from the
    moment `put` returns, whatever happens to the process that put it. Messages are freed when no process has the queue
    any more.

    Iteration ends when the queue is shut down and empty. A message for which eight receivers in a row have no memory
    moves to `dead_letters()`.
    """

    _maxsize = 0
    _rates: Rates

    def __init_subclass__(cls, **options: Any) -> None:
        """Replaces `put_nowait` (`get_nowait`) in a subclass that replaces `put` (`get`), as with standard queues."""
        super().__init_subclass__(**options)
        for name, replacement in (("put", _put_nowait), ("get", _get_nowait)):
            own = getattr(cls, name) is not getattr(_core.QueueBase, name)
            if own and getattr(cls, f"{name}_nowait") is getattr(_core.QueueBase, f"{name}_nowait"):
                setattr(cls, f"{name}_nowait", replacement)

    def _become(self, channel: _core.Channel, name: _core.Name | None, allow_pickle: bool = True) -> None:
        self._attach(channel, allow_pickle and channel.allows_pickle)
        self._maxsize = channel.capacity
        self._name = name
        self._rates = Rates()

    @classmethod
    def open(cls, name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> Self:
        """Opens the queue that another process of this user made with this name.

        Args:
            name: Name of the queue.
            allow_pickle: True allows pickles. They are sent and loaded only if the process that made the queue allowed
                them as well.
            timeout: Seconds to wait for a process to make the queue; None waits indefinitely.

        Raises:
            FileNotFoundError: There is no such name and `timeout` is 0.
            TimeoutError: There is still no such name after `timeout` seconds.
            ValueError: The name belongs to something other than a queue.
        """
        known = open_name(name, QUEUE, timeout)
        self = cls.__new__(cls)
        self._become(_core.Channel.open(known.arena, known.block), known, bool(allow_pickle))
        return self

    def handle(self) -> str:
        """Returns a text with which another process of this user opens the queue.

        That process calls `open_handle`, or `Queue::open` in C++. The queue is in transit until it is opened, as long
        as this process lives and for 60 s longer.
        """
        handles.check_giveable(self, "a queue")
        self._channel.note_named()
        return handles.handle_of(self._channel, self._name, True).hex()

    @classmethod
    def open_handle(cls, text: str, *, allow_pickle: bool | None = None) -> Self:
        """Opens the queue for which `handle()` returned this text, in Python or C++.

        Args:
            text: Result of `handle()`.
            allow_pickle: True if pickles may be sent and loaded. None allows it for a queue without a name. The process
                that made the queue has to allow them, too.

        Raises:
            FileNotFoundError: No process has the queue any more.
            ValueError: `text` is not the handle of a queue.
        """
        with handles.open_channel(bytes.fromhex(text), None, True) as (channel, name):
            if not channel.is_queue:
                raise ValueError("the handle belongs to an end of a pair, not to a queue")
            self = cls.__new__(cls)
            self._become(channel, name, name is None if allow_pickle is None else bool(allow_pickle))
        return self

    async def put_async(self, obj: _T, timeout: float | None = None, *, move: bool = False) -> None:
        """Does the same as `put` in a coroutine. If it is cancelled, the object was not put."""
        await waiting.put_async(self, obj, timeout, move)

    def __getstate__(self) -> tuple[Any, ...]:
        handles.check_giveable(self, "a queue")
        return (*handles.describe_end(self._channel, self._name, (False, True)), self.allow_pickle)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        handle, inheritance, allow_pickle = state
        with handles.open_channel(handle, inheritance, True) as (channel, name):
            self._become(channel, name, allow_pickle)
            arenas.note_given(self)

    # Attributes that multiprocessing's own classes, and some programs, use.

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
    """A `multiprocessing.Queue` in shared memory, from any number of processes to any number of processes.

    No thread works in the background. `put` raises the error of an object that cannot be sent. When it returns,
    `empty`, `qsize` and `full` take the object into account in every process.

    Args:
        maxsize: Number of objects in the queue at which `put` blocks; 0 or less means no limit.
        max_bytes: Number of bytes in the queue at which `put` blocks. `put` refuses a larger object with
            MessageTooLarge.
        name: Name under which the user's other processes find the queue with `Queue.open`. A named queue gets an arena
            of its own unless you pass one.
        arena: Arena for the objects; None takes the arena that this process makes for all channels.
        allow_pickle: True if objects without a native kind may be pickled. None (default) allows it for unnamed queues
            and refuses it for named ones, where both sides have to allow it.
        on_peer_death: What a blocked call does if a process died or failed and no other one is left that could end the
            wait. "wait" (default): keep waiting, as the standard queue does. "raise": raise PeerDied. For `get` of an
            empty queue, only processes that could put count, and for `put` into a full one, those that could get. A
            process that has used only the other method does not count, but one that has used neither does.
        portable: If True, `put` refuses objects that are valid on this machine only; see `create_pair`.
        exist_ok: If a queue has this name already, opens that queue instead.
        ctx: Ignored; it exists for multiprocessing's signature. A queue works with every start method.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The queue of that name was made with other arguments (the error has both values).

    Example::

        queue = shmtree.Queue(maxsize=16)
        worker = multiprocessing.Process(target=run, args=(queue,))
        worker.start()
        result = queue.get(timeout=60)
    """

    def __init__(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
        on_peer_death: OnQueuePeerDeath = "wait",
        portable: bool = False,
        exist_ok: bool = False,
        ctx: object = None,
    ) -> None:
        options = max_bytes, name, home_of(arena, name), allow_pickle, on_peer_death, portable, exist_ok
        self._become(*_core.make_channel("queue", maxsize, *options))

    def join_thread(self) -> None:
        """Does nothing, because there is no thread: every object that was put is in the queue already.

        Raises:
            AssertionError: The queue is not closed.
        """
        if not self.closed:
            raise AssertionError(f"Queue {self!r} not closed")

    def cancel_join_thread(self) -> None:
        """Does nothing, because there is no thread that a process would join at its exit."""


class JoinableQueue(Queue[_T]):
    """A Queue that counts the objects that were put and not yet processed."""

    _counts_tasks = True

    def task_done(self) -> None:
        """Reports that one object of `get` has been processed.

        Objects in `dead_letters()` need no call: they count as processed, and stay so when their Delivery is acked.

        Raises:
            ValueError: It was called more often than objects were put.
        """
        self._task_done()

    def join(self, timeout: float | None = None) -> None:
        """Blocks until every object that was put has been processed.

        An object that reached its maximum number of attempts, and is in `dead_letters()`, counts as processed until it
        is requeued. A process that is killed between `get` and `task_done` leaves its object unprocessed, as with the
        standard queue. After `close`, a call continues to wait while other processes have the queue.

        Args:
            timeout: Seconds to wait at most; None waits indefinitely.

        Raises:
            TimeoutError: Objects were left after `timeout` seconds.
            ChannelClosed: The queue was closed here and no other process has it, or the call started after the last
                `close` of this process.
            shmtree.PeerDied: Objects are left, and a queue with ``on_peer_death="raise"`` has no other process that
                could get them.
        """
        self._join_tasks(timeout)


class SimpleQueue(BaseQueue[_T]):
    """A `multiprocessing.SimpleQueue` in shared memory: a Queue without a limit for its number of objects.

    Args:
        max_bytes: Number of bytes in the queue at which `put` blocks; None means no limit.
        name: Name under which the user's other processes find the queue with `SimpleQueue.open`.
        arena: Arena for the objects; see `Queue`.
        allow_pickle: True if objects without a native kind may be pickled; see `Queue`.
        on_peer_death: What a blocked call does when processes died or failed; see `Queue`.
        portable: If True, `put` refuses objects that are valid on this machine only.
        exist_ok: If a queue has this name already, opens that queue instead.
        ctx: Ignored; it exists for multiprocessing's signature.
    """

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
        on_peer_death: OnQueuePeerDeath = "wait",
        portable: bool = False,
        exist_ok: bool = False,
        ctx: object = None,
    ) -> None:
        options = max_bytes, name, home_of(arena, name), allow_pickle, on_peer_death, portable, exist_ok
        self._become(*_core.make_channel("queue", 0, *options))
