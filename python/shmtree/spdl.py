"""Arenas in shmtree's shared memory for SPDL's pipelines in subprocesses.

::

    arena = shmtree.spdl.SegmentPool()
    for batch in spdl.pipeline.run_pipeline_in_subprocess(config, num_threads=4, arena=arena):
        ...                                    # large arrays, tensors, bytes and packets are views of shared memory

Both classes have the methods of `spdl.pipeline.ArenaProtocol`, in all versions of SPDL that have arenas. This module
does not import SPDL.

A *unit* (one item of the pipeline) is one message of a channel. It contains the copies of the item's large fields,
which are made in the arena while the item is pickled, and the number of the first of them. SPDL's offset is such a
number times 64.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import _core
from ._ipc.arena import Arena
from ._ipc.arguments import whole
from ._ipc.channel import Receiver, Sender
from ._ipc.stats import ArenaStats
from ._public import claim_names, made_by
from .errors import ChannelClosed, MessageTooLarge, OutOfSharedMemory, PeerDied

__all__ = ["ArenaReader", "ArenaWriter", "RingBuffer", "SegmentPool"]

# SPDL's own offsets are multiples of it, so that its packets are aligned for its codecs. Arrays in an arena are, too.
_ALIGNMENT = 64
# Interval of checks for dead processes.
_SLICE_S = 0.25


class _Limits(NamedTuple):
    """Limits of committed units that are not yet read, and of one unit; None means no limit."""

    units: int | None = None
    nbytes: int | None = None
    unit_nbytes: int | None = None


class _UnitArena:
    """Base of both arenas: a channel of units in its own arena."""

    _zero_copy: bool

    def __init__(self, limits: _Limits, acquire_timeout: float, max_bytes: int | None) -> None:
        if not acquire_timeout >= 0:
            raise ValueError(f"acquire_timeout is {acquire_timeout}; it must not be negative")
        self._limits = limits
        self._acquire_timeout = acquire_timeout
        self._arena = Arena(max_bytes)
        self._sender, self._receiver = self._arena.create_pair(None, allow_pickle=False)
        # The process that makes an arena reads from it. This first check attaches it as a receiver.
        with contextlib.suppress(queue.Empty):
            self._receiver.get_nowait()

    def open_writer(self) -> ArenaWriter:
        """Returns the end with which a worker writes units. Call it in the process that runs the pipeline."""
        return ArenaWriter._of(self._sender, self._limits, self._acquire_timeout)

    def open_reader(self) -> ArenaReader:
        """Returns the end with which units are read. Call it in the process that made the arena."""
        return ArenaReader._of(self._receiver, self._zero_copy)

    def shutdown_arena(self) -> None:
        """Detaches this process from the arena. In any process, a writer that waits for space fails."""
        self._receiver.close()
        self._sender.close()

    def close(self) -> None:
        """Calls `shutdown_arena`. Data that was read stays valid while it is referenced."""
        self.shutdown_arena()
        self._arena.close()

    def unlink(self) -> None:
        """Does nothing: the memory has no name, and is freed with its last process."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {_state_of(self._receiver)}>"

    def stats(self) -> ArenaStats:
        """Returns counts and byte totals of the memory; see `Arena.stats`."""
        return self._arena.stats()


class SegmentPool(_UnitArena):
    """An arena with units that are read as views, without a copy.

    It replaces `spdl.pipeline.SharedMemorySegmentPool`, with these differences. You need not give a size. Items that
    the consumer still holds do not count for `count`. It can keep as many as the memory allows, drop them in any order,
    and use them after the pool was closed. A consumer that holds more than half of the budget gets copies.

    Args:
        segment_size: Maximum number of bytes of one unit; None means no limit.
        count: Number of committed and not yet read units before `begin_unit` blocks. None leaves that to the pipeline's
            buffer and the budget.
        acquire_timeout: Seconds for which a writer waits for space before it raises BufferError; 0 raises at once.
        max_bytes: Budget of the memory, as of `shmtree.Arena`. It is a limit, not a reservation.
    """

    _zero_copy = True

    def __init__(
        self,
        segment_size: int | None = None,
        count: int | None = None,
        *,
        acquire_timeout: float = 60.0,
        max_bytes: int | None = None,
    ) -> None:
        self.segment_size = _positive("segment_size", segment_size)
        self.count = _positive("count", count)
        super().__init__(_Limits(units=self.count, unit_nbytes=self.segment_size), acquire_timeout, max_bytes)


class RingBuffer(_UnitArena):
    """An arena with units that are copied when they are read, so that bytes arrive as bytes.

    It replaces `spdl.pipeline.SharedMemoryRingBuffer`.

    Args:
        capacity: Number of written and not yet read bytes before `write_binary` blocks. A larger unit is refused.
        acquire_timeout: Seconds for which a writer waits for space before it raises BufferError; 0 raises at once.
        max_bytes: Budget of the memory, as of `shmtree.Arena`. It is a limit, not a reservation.
    """

    _zero_copy = False

    def __init__(self, capacity: int, *, acquire_timeout: float = 60.0, max_bytes: int | None = None) -> None:
        self.capacity = _positive("capacity", capacity)
        super().__init__(_Limits(nbytes=capacity, unit_nbytes=capacity), acquire_timeout, max_bytes)


def _state_of(receiver: Receiver) -> str:
    with contextlib.suppress(ChannelClosed):  # another thread may close it meanwhile
        if not receiver.closed:
            return f"{receiver.qsize()} units queued"
    return "closed"


def _positive(what: str, value: int | None) -> int | None:
    if value is not None and whole(what, value) <= 0:
        raise ValueError(f"{what} is {value}; it must be positive")
    return value


class _Committed(NamedTuple):
    ticket: int
    nbytes: int


@made_by("SegmentPool.open_writer()", "RingBuffer.open_writer()")
class ArenaWriter:
    """Writes units, in the worker; one thread at a time. Raises BufferError if there is no space or no reader."""

    _sender: Sender
    _limits: _Limits
    _acquire_timeout: float
    _committed: deque[_Committed]  # units that are not yet read
    _written: int  # number of binaries in all committed units
    _unit: list[Any] | None
    _unit_nbytes: int

    @classmethod
    def _of(cls, sender: Sender, limits: _Limits, acquire_timeout: float) -> ArenaWriter:
        self = cls.__new__(cls)
        self._sender = sender
        self._limits = limits
        self._acquire_timeout = acquire_timeout
        self._committed = deque()
        self._written = self._unit_nbytes = 0
        self._unit = None
        return self

    def reset(self) -> None:
        """Starts a new iteration. Units that the reader left unread do not take space from it."""
        self._unit = None
        self._committed.clear()

    def __repr__(self) -> str:
        state = "closed" if self._sender.closed else f"{len(self._committed)} units unread"
        return f"<ArenaWriter, {state}>"

    def begin_unit(self) -> None:
        """Blocks until there is space for one more unit."""
        units = self._limits.units
        if units is not None:
            self._wait_until(lambda: len(self._committed) < units, f"{units} units were not read")
        self._unit = []
        self._unit_nbytes = 0

    def write_binary(self, data: Any) -> tuple[int, int]:
        """Copies bytes into the arena.

        Args:
            data: A contiguous buffer.

        Returns:
            The offset and size in bytes by which the reader finds them.

        Raises:
            RuntimeError: There is no unit; `begin_unit` begins one.
            BufferError: The unit is too large, there was no space in time, or no reader is left.
        """
        if self._unit is None:
            raise RuntimeError("write_binary() was called outside of a unit; call begin_unit() first")
        size = memoryview(data).nbytes
        total = self._unit_nbytes + size
        self._check_limits(total)
        self._unit.append(self._copy_in(data, size))
        self._unit_nbytes = total
        return (self._written + len(self._unit) - 1) * _ALIGNMENT, size

    def commit_unit(self) -> int:
        """Makes the whole unit readable.

        Returns:
            The size of the unit in bytes.

        Raises:
            RuntimeError: There is no unit; `begin_unit` begins one.
            BufferError: There was no space in time, or no reader is left.
        """
        if self._unit is None:
            raise RuntimeError("commit_unit() was called outside of a unit; call begin_unit() first")
        unit, self._unit = self._unit, None
        if self._unit_nbytes:
            ticket = self._put((self._written, unit))
            self._committed.append(_Committed(ticket, self._unit_nbytes))
            self._forget_read()
        self._written += len(unit)
        return self._unit_nbytes

    def abort_unit(self) -> None:
        """Drops the unit. No part of it was visible."""
        self._unit = None

    def _put(self, message: Any) -> int:
        try:
            with _as_buffer_errors():
                return self._sender.put(message, timeout=self._acquire_timeout)
        except (queue.Full, OutOfSharedMemory) as error:
            raise BufferError(f"the unit cannot be committed for lack of memory: {error}") from error

    def _check_limits(self, unit_nbytes: int) -> None:
        """Checks that the unit may have this many bytes; blocks until there is space for them."""
        most = self._limits.unit_nbytes
        if most is not None and unit_nbytes > most:
            raise BufferError(f"a unit has {unit_nbytes} bytes; the limit of the arena is {most}")
        limit = self._limits.nbytes
        if limit is not None:
            self._wait_until(
                lambda: sum(each.nbytes for each in self._committed) + unit_nbytes <= limit,
                f"no space for a unit of {unit_nbytes} bytes in {limit} bytes, next to unread units,",
            )

    def _copy_in(self, data: Any, size: int) -> Any:
        deadline = time.monotonic() + self._acquire_timeout
        while True:
            left = deadline - time.monotonic()
            try:
                with _as_buffer_errors():
                    return _core.copy_in(self._sender._channel.arena, data, min(left, _SLICE_S))
            except MessageTooLarge as error:
                raise BufferError(str(error)) from error
            except (queue.Full, OutOfSharedMemory) as error:
                if left <= 0:
                    raise BufferError(f"no memory for {size} bytes {self._within()}: {error}") from error
            # A dead reader makes no space.
            with contextlib.suppress(TimeoutError), _as_buffer_errors():
                self._sender.wait_for_all_ack(timeout=0)

    def _wait_until(self, has_room: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._acquire_timeout
        self._forget_read()
        while not has_room():
            try:
                with _as_buffer_errors():
                    self._sender.wait_for_ack(self._committed[0].ticket, max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                raise BufferError(f"{what} {self._within()}") from None
            self._forget_read()

    def _forget_read(self) -> None:
        with _as_buffer_errors():
            pending = self._sender.pending_acks
        while len(self._committed) > pending:  # units are read in order
            self._committed.popleft()

    def _within(self) -> str:
        return f"within {self._acquire_timeout:g} s (acquire_timeout)"


@contextlib.contextmanager
def _as_buffer_errors() -> Iterator[None]:
    try:
        yield
    except (ChannelClosed, PeerDied) as error:
        raise BufferError(f"no process that reads the arena is left: {error}") from error


@made_by("SegmentPool.open_reader()", "RingBuffer.open_reader()")
class ArenaReader:
    """Reads units in the order in which they were written.

    Use it in the process that made the arena, in one thread at a time.

    Raises PeerDied if a unit is missing because its writer was killed.
    """

    zero_copy: bool  #: True if data is returned as views of shared memory

    _receiver: Receiver
    _first: int  # number of the first of:
    _unit: list[Any]

    @classmethod
    def _of(cls, receiver: Receiver, zero_copy: bool) -> ArenaReader:
        self = cls.__new__(cls)
        self.zero_copy = zero_copy
        self._receiver = receiver
        self._first = 0
        self._unit = []
        return self

    def reset(self) -> None:
        """Starts a new iteration. The next read skips units that were left unread."""
        self._unit = []

    def __repr__(self) -> str:
        return f"<ArenaReader, {_state_of(self._receiver)}>"

    def read_binary(self, offset: int, nbytes: int) -> memoryview:
        """Returns the bytes for which `write_binary` returned this offset and size.

        Args:
            offset: Offset in the arena, in bytes.
            nbytes: Size in bytes.

        Raises:
            BufferError: No committed unit has these bytes, or that unit was ended.
            shmtree.PeerDied: The unit is missing because its writer was killed.
        """
        if nbytes == 0:
            return memoryview(bytearray())
        number = offset // _ALIGNMENT
        while number >= self._first + len(self._unit):
            self._take_unit()
        if number < self._first:
            raise BufferError(f"the unit with the bytes at {offset} has ended already")
        view = memoryview(self._unit[number - self._first])
        if view.nbytes != nbytes:
            raise BufferError(f"{view.nbytes} bytes were written at {offset}, not {nbytes}")
        return view

    def end_unit(self, span: int, pinned: list[object]) -> None:
        """Ends the unit, read or not.

        Args:
            span: Size of the unit in bytes, which `commit_unit` has returned.
            pinned: Not used: views keep their own memory alive.
        """
        if span and not self._unit:
            with contextlib.suppress(BufferError, ChannelClosed, PeerDied):
                self._take_unit()
        self._unit = []

    def _take_unit(self) -> None:
        # Committed units are available without waiting.
        try:
            self._first, self._unit = self._receiver.get_nowait(copy=None if self.zero_copy else True)
        except queue.Empty:
            raise BufferError("the unit was never committed, or has been read and ended") from None


__dir__ = claim_names(globals())
