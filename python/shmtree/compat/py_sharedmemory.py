"""The interface of py-sharedmemory 4.3: ``from shmtree.compat.py_sharedmemory import create_shared_memory_pair``.

Version 3 has the same calls in a module ``memory``; version 1 has other ones, see `shmtree.compat.memory`. As in
py-sharedmemory, ``get`` returns copies, and ``get_nowait`` raises ``queue.Empty``. ``wait_for_all_ack`` returns False
if a message was not received in time. If it is received later, it counts for the next call. docs/migration.md lists
what differs. Programs written for py-sharedmemory keep both ends in the process that starts the others, so these ends
issue no UnusedEndWarning.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, TypeVar

from .._ipc import pairs
from .._ipc.channel import ChannelEnd, Receiver, Sender
from .._public import claim_names, made_by
from ..errors import ChannelClosed

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SharedMemoryReceiver", "SharedMemorySender", "create_shared_memory_pair"]

_FOREVER = float("inf")


def seconds(timeout: float | None) -> float | None:
    """Returns a timeout of py-sharedmemory, with None for infinity. Raises ValueError for NaN."""
    if timeout is not None and timeout != timeout:
        raise ValueError("timeout must be a number of seconds, not NaN")
    return None if timeout == _FOREVER else timeout


class _End(ChannelEnd):
    """Base of both ends. Emits no UnusedEndWarning; entering a closed end with ``with`` raises ChannelClosed."""

    __slots__ = ()

    @classmethod
    def _of(cls, channel: Any, allow_pickle: bool = True) -> Self:
        self: Self = super()._of(channel, allow_pickle)  # type: ignore[misc]
        self._expect_no_end()
        return self

    def __enter__(self) -> Self:
        if self.closed:
            raise ChannelClosed("this end of the channel was closed in this process")
        return self


@made_by("create_shared_memory_pair()")
class SharedMemorySender(_End, Sender):
    """The sending end. Unlike in py-sharedmemory, any number of processes may put."""

    __slots__ = ()

    def put(self, data: Any, block: bool = True, timeout: float | None = None) -> None:  # type: ignore[override]
        """Sends an object. Raises ``queue.Full`` if there is no capacity within `timeout` seconds."""
        super().put(data, block, seconds(timeout))

    def put_nowait(self, data: Any) -> None:  # type: ignore[override]
        """Calls `put` without waiting."""
        self.put(data, block=False)

    def wait_for_all_ack(self, timeout: float | None = None) -> Any:
        """Returns True once every message that this process has put was received, False after `timeout` seconds."""
        try:
            super().wait_for_all_ack(seconds(timeout))
        except TimeoutError:
            return False
        return True


@made_by("create_shared_memory_pair()")
class SharedMemoryReceiver(_End, Receiver):
    """The receiving end. Any number of processes and threads may get; each message goes to one of them."""

    __slots__ = ()

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = True) -> Any:
        """Returns the next object. Raises ``queue.Empty`` if there is none within `timeout` seconds.

        With ``copy=None`` large arrays are views of shared memory, as with `shmtree.Receiver.get`.
        """
        return super().get(block, seconds(timeout), copy=copy)

    def get_nowait(self, *, copy: bool | None = True) -> Any:
        """Calls `get` without waiting."""
        return self.get(block=False, copy=copy)


_S = TypeVar("_S", bound=SharedMemorySender)
_R = TypeVar("_R", bound=SharedMemoryReceiver)


def make_pair(capacity: Any, sender: type[_S], receiver: type[_R]) -> tuple[_S, _R]:
    """Returns both ends of a new channel, as instances of these classes."""
    if isinstance(capacity, bool) or not (capacity is None or isinstance(capacity, int)):
        raise TypeError(f"capacity is {capacity!r}; it must be an integer or None")
    sends, receives = pairs.create_pair(capacity)
    return sender._of(sends._channel, sends.allow_pickle), receiver._of(receives._channel, receives.allow_pickle)


def create_shared_memory_pair(
    capacity: int | None = 0, *, ctx: BaseContext | None = None
) -> tuple[SharedMemorySender, SharedMemoryReceiver]:
    """Makes a channel and returns its two ends.

    Args:
        capacity: Maximum number of messages; None or 0 means no limit.
        ctx: Not used: the ends work in processes of any context.
    """
    return make_pair(capacity, SharedMemorySender, SharedMemoryReceiver)


__dir__ = claim_names(globals())
