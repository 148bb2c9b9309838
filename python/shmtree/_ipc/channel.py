"""Channels and their two ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from .. import _core
from .._codec import tensors
from .._process import arenas, handles, names, spawn
from .._public import made_by
from . import waiting
from .arguments import core_of
from .ends import End, PublishingEnd, ReceivingEnd, shown
from .item_type import T
from .stats import ChannelStats

OnPeerDeath = Literal["raise", "wait", "each"]
OnFull = Literal["block", "drop_oldest"]
KeepOpen = bool | Literal["both"]

if TYPE_CHECKING:
    from typing_extensions import Self


def home_of(arena: Any, name: str | None) -> _core.Arena | None:
    """Checks the name, and returns the arena for a new channel. None: a named channel gets an arena of its own."""
    if name is None:
        return core_of(arena) or arenas.default_arena()
    names.check_name(name)
    spawn.sweep()
    return core_of(arena)


class Rates:
    """Messages per second since the previous call."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def add_to(self, stats: dict[str, Any]) -> dict[str, Any]:
        now = (time.monotonic(), stats["put"], stats["received"])
        last, self._last = self._last, now
        seconds = now[0] - last[0] if last is not None else 0.0
        stats["put_per_s"] = (now[1] - last[1]) / seconds if last is not None and seconds > 0 else 0.0
        stats["received_per_s"] = (now[2] - last[2]) / seconds if last is not None and seconds > 0 else 0.0
        return stats


class ChannelEnd(End):
    """Base of the ends of channels: statistics."""

    __slots__ = ()
    _rates: Rates
    _counts_tasks = False

    if TYPE_CHECKING:  # provided by the base class of the core, which comes first

        @property
        def _channel(self) -> _core.Channel: ...  # ChannelClosed once this process has closed the channel
        @property
        def _pickled(self) -> int: ...
        def _expect_no_end(self) -> None: ...

    @property
    def capacity(self) -> int | None:
        """Number of messages in the channel at which `put` blocks; None if there is no limit."""
        return self._channel.capacity or None

    def stats(self) -> ChannelStats:
        """Returns counts of the channel.

        Returns:
            A dict with these keys.

            - put, received, queued (including returned messages), taken (in flight), returned, dead_letters, dropped:
              numbers of messages. queued_bytes: bytes of the queued ones.
            - capacity, max_bytes, max_unacked, max_attempts: limits; 0 means no limit.
            - senders, receivers: processes that have the ends.
            - senders_attached, receivers_attached: processes that are attached, so that the stream does not end. A
              process that uses only the other end is not attached.
            - senders_never_used, receivers_never_used: pids of attached processes that have never used the end.
            - senders_in_transit, receivers_in_transit: ends in transit.
            - put_per_s, received_per_s: messages per second since the last call on this object.
            - pickled (ends that can put): messages given to `put` of this object that needed a pickle;
              `shmtree.describe` says why.
            - unfinished (JoinableQueue): messages without a `task_done()`, except the dead letters.

        Raises:
            ChannelClosed: This object is closed, and this process has no other object of the channel.
        """
        stats = self._channel.stats()
        if hasattr(self, "put"):
            stats["pickled"] = self._pickled
        if not self._counts_tasks:
            del stats["unfinished"]
        return cast("ChannelStats", self._rates.add_to(stats))

    def __repr__(self) -> str:
        return shown(
            self, lambda: "{queued} of {} queued".format(self.capacity or "unlimited", **self._channel.stats())
        )


@made_by("shmtree.create_pair()", "shmtree.open_sender()")
class Sender(_core.SenderBase[T], PublishingEnd, ChannelEnd):
    """The sending end of a channel, made by `create_pair` and `open_sender`.

    Several threads may use it. It can be inherited over fork, passed to processes as an argument with any start method,
    and sent through pipes and queues. Each process then has an end of its own.

    A process is attached as a sender from the moment it has the end. It detaches when it closes or drops its last one,
    exits, or uses only the receiving end. When no sender is attached any more, receivers reach the end of the stream. A
    process that multiprocessing forks is attached only to ends that it was given or uses; see `keep_only` for other
    forks.
    """

    __slots__ = ("__weakref__", "_rates")
    _rates: Rates

    @classmethod
    def _of(cls, channel: _core.Channel, allow_pickle: bool = True) -> Self:
        self = _core.SenderBase.__new__(cls, channel, allow_pickle)  # type: ignore[call-arg]
        self._rates = Rates()
        return self

    @property
    def dropped(self) -> int:
        """Number of messages that `put` has dropped for newer ones, by all senders of the channel."""
        return self._channel.dropped

    async def put_async(self, obj: T, timeout: float | None = None, *, move: bool = False) -> int:
        """Does the same as `put` in a coroutine. If it is cancelled, the object was not put."""
        ticket: int = await waiting.put_async(self, obj, timeout, move)
        return ticket

    def __reduce__(self) -> tuple[Any, ...]:
        return handles.reduce_end(self, False)


@made_by("shmtree.create_pair()", "shmtree.open_receiver()")
class Receiver(_core.ReceiverBase[T], ReceivingEnd[T], ChannelEnd):
    """The receiving end of a channel, made by `create_pair` and `open_receiver`; it iterates to the end of the stream.

    The rules of `Sender` for threads, processes and attachment apply to it, too. Each message goes to one receiver. A
    receiver supports ``for`` and ``async for``. It has no length, so it is always true: use `qsize` or `empty`.

    The stream ends when every message is received and no sender is attached. Then `get` raises PeerDied once if a
    sender was killed, WorkerFailed if one failed, and ChannelClosed otherwise.
    """

    __slots__ = ("__weakref__", "_rates")
    _rates: Rates

    @classmethod
    def _of(cls, channel: _core.Channel, allow_pickle: bool = True) -> Self:
        self = _core.ReceiverBase.__new__(cls, channel, allow_pickle)  # type: ignore[call-arg]
        self._rates = Rates()
        return self

    def get_to(self, device: Any, block: bool = True, timeout: float | None = None) -> Any:
        """Receives a message and copies its tensors, and its numeric arrays as tensors, to a torch device.

        It finds them in dicts, lists, tuples, deques and dataclasses. The message pins nothing of what was copied. If
        the arena is pinned in this process (`Arena.pin`), the copies run in the device's current stream. Their source
        stays allocated until a later call finds that they are done.

        A message that cannot be copied, for example because the device has no memory for it, returns to the channel.

        Args:
            device: A torch device, or its name.
            block: If False, raises ``queue.Empty`` at once when there is no message.
            timeout: Seconds to wait for a message; None waits indefinitely.

        Returns:
            The object, with tensors on the device.

        Raises:
            queue.Empty: There is no message after `timeout` seconds. The other errors are those of `take`.
            DeviceError: The device does not exist; no message is received.
        """
        tensors.library.check_device(device)
        with self.take(block, timeout, copy=False) as delivery:
            return tensors.library.receive_to(self._channel.arena, delivery.item, device)

    def __reduce__(self) -> tuple[Any, ...]:
        return handles.reduce_end(self, True)


class ChannelOptions(TypedDict, total=False):
    """Options of pairs and queues, besides the arena and the capacity."""

    max_bytes: int | None
    name: str | None
    allow_pickle: bool | None
    portable: bool
    exist_ok: bool


class PairOptions(ChannelOptions, total=False):
    """Options of `create_pair`, besides `capacity` and `arena`."""

    on_peer_death: OnPeerDeath
    max_unacked: int | None
    max_attempts: int | None
    on_full: OnFull
    keep_open: KeepOpen


def ends_of(channel: _core.Channel, name: _core.Name | None = None) -> tuple[Sender, Receiver]:
    """Returns the two ends of a channel that this process has made."""
    allow = channel.allows_pickle
    sender, receiver = Sender._of(channel, allow), Receiver._of(channel, allow)
    sender._name = receiver._name = name
    return sender, receiver
