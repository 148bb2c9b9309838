"""What py-sharedmemory has, by its names and with its behaviour where that differs: one import is the whole migration.

``wait_for_all_ack`` returns whether everything was received instead of raising TimeoutError, and the capacity is
unlimited unless it is given. Programs that were written for py-sharedmemory keep both ends in the process that starts
the others, and never wait for the end of a stream: they get no UnusedEndWarning.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from .. import _pairs
from .._channel import Receiver, Sender

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SharedMemoryReceiver", "SharedMemorySender", "create_shared_memory_pair"]


class SharedMemorySender(Sender):
    """Sender, with py-sharedmemory's way of telling that acks did not come in time."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> Self:
        self = super().__new__(cls, *args)
        self._expect_no_end()
        return self

    def wait_for_all_ack(self, timeout: float | None = None) -> Any:
        """Whether every message that this process has put was received within `timeout` seconds (None: waits)."""
        try:
            super().wait_for_all_ack(timeout)
        except TimeoutError:
            return False
        return True


class SharedMemoryReceiver(Receiver):
    """Receiver under py-sharedmemory's name."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> Self:
        self = super().__new__(cls, *args)
        self._expect_no_end()
        return self


def create_shared_memory_pair(
    capacity: int | None = 0, *, ctx: BaseContext | None = None
) -> tuple[SharedMemorySender, SharedMemoryReceiver]:
    """A channel of `capacity` messages, None or 0 being unlimited.

    `ctx` is not needed and has no effect: the ends go to processes of any context.
    """
    sender, receiver = _pairs.create_pair(capacity)
    return (
        SharedMemorySender(sender._channel, sender.allow_pickle),
        SharedMemoryReceiver(receiver._channel, receiver.allow_pickle),
    )
