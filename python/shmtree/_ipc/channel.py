"""Channels, and their two ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import _core
from .._codec import tensors
from .._process import arenas, handles, names, spawn
from ..errors import ChannelClosed
from . import arrays, waiting
from .arguments import limit, one_of

OnPeerDeath = Literal["raise", "wait", "each"]
Behind = Literal["block", "drop_oldest"]

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    _T = TypeVar("_T", default=Any)  # a plain Sender, or Receiver, is one of anything
else:
    from typing import TypeVar

    _T = TypeVar("_T")

_E = TypeVar("_E", bound="End")


class Terms(NamedTuple):
    """What a channel is made with, as users say it; limits of 0 are none."""

    capacity: int
    max_bytes: int
    on_peer_death: str
    max_unsettled: int = 0
    max_attempts: int = 0
    keep_open: bool = False
    drop_oldest: bool = False
    portable: bool = False
    is_pipe: bool = False


def new_channel(
    arena: _core.Arena | None,
    terms: Terms,
    allow_pickle: bool | None,
    name: str | None = None,
    kind: int = names.CHANNEL,
    exist_ok: bool = False,
) -> tuple[_core.Channel, bool, _core.Name | None]:
    """A channel, whether its ends may pickle, and its name.

    `arena` None: one of its own for a named channel, else the process's. With `exist_ok` the one that has the name.
    """
    if name is not None:
        names.check_name(name)
    allow = name is None if allow_pickle is None else bool(allow_pickle)
    options = _core.ChannelOptions(*terms, allow_pickle=allow)
    if name is None:
        return _core.Channel.create(arena or arenas.default_arena(), options), allow, None
    spawn.sweep()
    channel, known = _core.Channel.create_named(name, kind, arena, options, exist_ok)
    return channel, allow, known


class Rates:
    """Messages per second since the last time somebody asked."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def add_to(self, stats: dict[str, Any]) -> dict[str, Any]:
        now = (time.monotonic(), stats["put"], stats["received"])
        last, self._last = self._last, now
        seconds = now[0] - last[0] if last is not None else 0.0
        stats["put_per_s"] = (now[1] - last[1]) / seconds if last is not None and seconds > 0 else 0.0
        stats["received_per_s"] = (now[2] - last[2]) / seconds if last is not None and seconds > 0 else 0.0
        return stats


class End:
    """What all ends have: looks at their channel, and ``with``."""

    __slots__ = ()
    _rates: Rates
    _counts_tasks = False

    if TYPE_CHECKING:  # from the base of the core, which comes first

        @property
        def _channel(self) -> _core.Channel: ...  # ChannelClosed when this process has it no more
        @property
        def _pickled(self) -> int: ...
        @property
        def closed(self) -> bool: ...
        def close(self) -> None: ...
        def _expect_no_end(self) -> None: ...

    @property
    def capacity(self) -> int | None:
        """Messages that the channel takes before `put` waits; None when there is no limit."""
        return self._channel.capacity or None

    def stats(self) -> dict[str, Any]:
        """Counts of the channel.

        put, received, queued (with the returned ones) and taken (not settled) messages, returned, rejected and dropped
        ones, queued_bytes; capacity, max_bytes, max_unsettled and max_attempts (0: no limit); processes that have the
        ends (senders, receivers), how many of them take part in it, so that the stream does not end (senders_counting,
        receivers_counting: not those that use the other one only), the process ids of those that do and have never used
        it (senders_unused, receivers_unused), and ends that were given away and not yet loaded (senders_on_their_way,
        receivers_on_their_way); put_per_s and received_per_s since the last call on this object. Of what can put also
        pickled: the messages given to put() of this very object that needed a pickle (`shmtree.describe` says why). Of
        a JoinableQueue also unfinished: those that no task_done() was called for, without the rejected ones.
        ChannelClosed after close(), unless this process has another object of the channel.
        """
        stats = self._channel.stats()
        if hasattr(self, "put"):
            stats["pickled"] = self._pickled
        if not self._counts_tasks:
            del stats["unfinished"]
        return self._rates.add_to(stats)

    def __enter__(self: _E) -> _E:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__}, closed>"
        stats = self._channel.stats()
        return f"<{type(self).__name__}, {stats['queued']} of {stats['capacity'] or 'unlimited'} queued>"


class Sender(_core.SenderBase[_T], End):
    """The end of a channel that messages are put into.

    Made by `create_pair` and `open_sender`. It may be used by several threads, inherited over fork, given to processes
    as an argument with any start method, and sent through pipes and queues: each process then has an end of its own. A
    process takes part in sending from the moment it has the end until it closes or drops its last one, exits, or uses
    only the receiving end; when nobody takes part any more, receivers find the end of the stream. A process
    that multiprocessing forks is attached only to ends that it was given or uses; see `keep_only` for other forks.
    """

    __slots__ = ("__weakref__", "_rates")
    _rates: Rates

    def __new__(cls, channel: _core.Channel, allow_pickle: bool = True) -> Self:
        self = super().__new__(cls, channel, allow_pickle)
        self._rates = Rates()
        return self

    def _new_tensor(self, shape: Any, dtype: Any, order: str, zeroed: bool) -> Any:
        return arrays.new_array(self._channel.arena, shape, dtype, order, zeroed)

    @property
    def dropped(self) -> int:
        """Messages that puts have dropped for newer ones, those of all senders of the channel."""
        return self._channel.dropped

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """`new_empty` with the shape, dtype and order of another array or tensor."""
        return arrays.new_like(self._channel.arena, prototype, dtype, order)

    async def put_async(self, obj: _T, timeout: float | None = None, *, move: bool = False) -> int:
        """`put` for coroutines. When it is cancelled, the object was not put."""
        ticket: int = await waiting.put_async(self, obj, timeout, move)
        return ticket

    def __reduce__(self) -> tuple[Any, ...]:
        return handles.reduce_end(self, False)


class Receiver(_core.ReceiverBase[_T], End):
    """The end of a channel that messages are received from; ``for`` and ``async for`` go on to the end of the stream.

    Made by `create_pair` and `open_receiver`. What is said of Sender about threads, processes and taking part goes for
    it as well; each message goes to one receiver. It has no length, so it is always true: ask `qsize` or `empty`.

    The stream ends when what was sent is received and nobody is left who sends. The end is PeerDied, once, if one of
    the senders was killed, else ChannelClosed. A process that an uncaught exception ends was not killed.
    """

    __slots__ = ("__weakref__", "_rates")
    _rates: Rates

    def __new__(cls, channel: _core.Channel, allow_pickle: bool = True) -> Self:
        self = super().__new__(cls, channel, allow_pickle)
        self._rates = Rates()
        return self

    def get_to(self, device: Any, block: bool = True, timeout: float | None = None) -> Any:
        """`get` with the message's tensors, and its numeric arrays as tensors, copied to a device of torch.

        In dicts, lists, tuples, deques and dataclasses, that is; nothing of what was copied is held after it. Out of an
        arena that is pinned here (`Arena.pin`) the copies are in the device's current stream, and what they read is
        held until a later call finds them done. DeviceError for a device that is not there, and nothing is received. A
        message that cannot be copied, as when the device has no memory for it, goes back to the channel.
        """
        tensors.library.check_device(device)
        with self.take(block, timeout, copy=False) as delivery:
            return tensors.library.receive_to(self._channel.arena, delivery.item, device)

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> _T:
        """`get` for coroutines. It can be cancelled at any time without losing a message."""
        got: _T = await waiting.get_async(self, timeout, copy)
        return got

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        try:
            return await self.get_async()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def __reduce__(self) -> tuple[Any, ...]:
        return handles.reduce_end(self, True)


def pair_terms(
    capacity: int | None,
    max_bytes: int | None,
    max_unsettled: int | None,
    max_attempts: int | None,
    on_peer_death: str,
    behind: str,
    keep_open: bool,
    portable: bool,
) -> Terms:
    one_of("on_peer_death", on_peer_death, "raise", "wait", "each")
    return Terms(
        limit("capacity", capacity),
        limit("max_bytes", max_bytes),
        on_peer_death,
        limit("max_unsettled", max_unsettled),
        limit("max_attempts", max_attempts),
        bool(keep_open),
        one_of("behind", behind, "block", "drop_oldest") == "drop_oldest",
        bool(portable),
    )


def make_pair(
    arena: _core.Arena | None, terms: Terms, name: str | None, allow_pickle: bool | None, exist_ok: bool
) -> tuple[Sender, Receiver]:
    """`arena` None: one of its own for a named pair, else the process's."""
    if exist_ok and name is None:
        raise ValueError("exist_ok requires a name")
    channel, allow, known = new_channel(arena, terms, allow_pickle, name, names.CHANNEL, bool(exist_ok))
    sender, receiver = Sender(channel, allow), Receiver(channel, allow)
    sender._name = receiver._name = known
    return sender, receiver
