"""The ways in which tests/fuzz/bindings.py reads frames."""

from __future__ import annotations

import abc
import contextlib
import functools
import io
import mmap
import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from bindings_seeds import DEVICE, FLAT, TENSORS, pack, values
from frame_writer import Writer

import shmtree
from shmtree import _core

MIB = 1 << 20
DEVICE_LEAF = "shmtree._leaves:DeviceLeaf"
REFUSED = (shmtree.CorruptMessage, shmtree.PickleRefused)
#: Errors that a channel may also raise, for ends and device memory that do not exist.
ABSENT = (shmtree.ChannelClosed, shmtree.DeviceError, shmtree.PeerDied, FileNotFoundError)


def text_of(value: object) -> None:
    with contextlib.suppress(Exception):  # A damaged value may have no text.
        repr(value)


class Target(abc.ABC):
    """One way to read frames."""

    #: Errors that reading a damaged frame may raise. MemoryError is not one of them: no seed needs much memory.
    refusals: tuple[type[Exception], ...] = REFUSED
    has_header = False  # True if only frames with the header of a request are read

    def frames(self) -> Iterator[bytes]:
        """Yields frames to damage."""
        yield from map(pack, values())
        yield from TENSORS
        yield from FLAT

    def registered(self) -> Iterator[tuple[str, Any]]:
        """Yields names of registered classes, or "" for a plain tuple, with parts that this process would accept."""
        yield from ()

    def put(self, frame: bytes) -> None:
        """Sets the frame that `read` reads."""
        self._frame = frame

    @abc.abstractmethod
    def read(self) -> object:
        """Reads the frame. Returns a value that is the same for equal outcomes."""


class Unpack(Target):
    """Reads frames as bytes that another program wrote."""

    def __init__(self) -> None:
        self._count = 0

    def read(self) -> object:
        self._count += 1
        copy = (None, True, False)[self._count % 3]
        value = shmtree.unpack(
            self._frame if self._count % 2 else bytearray(self._frame), copy=copy, allow_pickle=False
        )
        text_of(value)
        return type(value)


class Describe(Target):
    """Prints frames."""

    def read(self) -> object:
        out = io.StringIO()
        if self._frame[:4] != b"SHMT":
            return None  # describe() would take it for an object, not for a frame
        shmtree.describe(self._frame, file=out)
        return len(out.getvalue()).bit_length()


@functools.lru_cache(4096)
def placeholder(size: int) -> bytes:
    """Returns the smallest frame of a bytes object of zeros that has at least `size` bytes."""
    empty = len(pack(bytes(5000))) - 5000
    for count in (*range(max(size - 160, 24), size), max(size - empty, 5000)):
        frame = pack(bytes(count))
        if len(frame) >= size:
            return frame
    raise SystemError(f"no frame of {size} bytes")


class Damaged:
    """Puts messages, and changes their bytes in shared memory, as any process with the arena could."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._fd = sender._channel.arena.fd
        self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        self._places: list[int] = []
        self._count = 0

    def put(self, frame: bytes) -> None:
        self._count += 1
        placed = placeholder(len(frame))
        # The mark is different in each message.
        mark = self._count.to_bytes(8, "little") + b"mark"
        at = len(placed) - 24
        self._sender.put_frame(placed[:at] + mark + placed[at + len(mark) :])
        first = self._place_of(mark, at)
        self._memory[first : first + len(frame)] = frame

    def _place_of(self, mark: bytes, at: int) -> int:
        for place in self._places:
            if self._memory[place + at : place + at + len(mark)] == mark:
                return place
        for first, end in self._written():
            found = self._memory.find(mark, first, end)
            if found >= 0:
                self._places.append(found - at)
                return found - at
        raise SystemError("a message that was put is not in the memory of its channel")

    def _written(self) -> Iterator[tuple[int, int]]:
        """Yields the parts of the memory that are not holes."""
        first = 0
        while True:
            try:
                first = os.lseek(self._fd, first, os.SEEK_DATA)
            except OSError:
                return  # there is no more data
            end = os.lseek(self._fd, first, os.SEEK_HOLE)
            yield first, end
            first = end


def with_placeholders(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yields frames of sizes that a placeholder can have. Adds a large buffer to those of no multiple of 8 bytes."""
    for frame in frames:
        yield frame if len(frame) % 8 == 0 else pack([shmtree.unpack(frame, allow_pickle=True), bytes(8000)])


class Channel(Target):
    """Receives messages that are damaged after they were put."""

    refusals = (*REFUSED, *ABSENT)

    def __init__(self) -> None:
        shared = shmtree.Arena(max_bytes=8 * MIB)
        self._sender, self._receiver = shmtree.create_pair(4, arena=shared, allow_pickle=False)
        self._arena = self._sender._channel.arena
        self._damaged = Damaged(self._sender)
        self._ends = shmtree.create_pair(4, arena=shared)
        self._token = self._arena.new_array(64, np.uint8, "C", True, True)
        self._peer = self._arena.reserve_slot()
        self._count = 0

    def frames(self) -> Iterator[bytes]:
        yield from with_placeholders(super().frames())
        for name, parts in self.registered():
            yield Writer().kind(45).name(name).value(parts).frame()

    def registered(self) -> Iterator[tuple[str, Any]]:
        blocks = self._ends[0]._channel.block, _core.block_of(self._token), 0
        end, array, whole = (_core.make_handle(self._arena, block) for block in blocks)
        yield from (
            ("shmtree:Sender", (end, False)),
            ("shmtree:Receiver", (end, False)),
            ("shmtree:SharedArray", (array, (64,), "|u1")),
            ("shmtree:Arena", (whole,)),
        )
        # Device memory that claims to be of this arena, and of another participant, this process, or a dead one.
        for identity in (self._peer[0], self._arena.identity, 3):
            sender = (self._arena.uuid, _core.block_of(self._token), identity, os.getpid())
            for about in (DEVICE[0], ("torch", "float32", 0, (4,), (1,), False, True)):
                yield DEVICE_LEAF, (about, sender, DEVICE[2], 0)
        yield DEVICE_LEAF, (("array", "|u1", 0, (0, 3), (3, 1), True),)

    def put(self, frame: bytes) -> None:
        for delivery in self._receiver.dead_letters():
            delivery.ack()
        self._damaged.put(frame)

    def read(self) -> object:
        self._count += 1
        if self._count % 4:
            value = self._receiver.get(block=False, copy=(None, True, False)[self._count % 3])
        else:
            with self._receiver.take(block=False) as delivery:
                value = delivery.item
        text_of(value)
        return type(value)


class Service(Target):
    """Serves requests that are damaged after they were put."""

    has_header = True

    def __init__(self) -> None:
        self._service: Any = shmtree.Service(capacity=4, arena=shmtree.Arena(max_bytes=8 * MIB), allow_pickle=False)
        sender = self._service.sender
        sender._send_requests()
        self._damaged = Damaged(sender)
        self._sender, self._replies = shmtree.create_pair(
            16, arena=shmtree.Arena(max_bytes=8 * MIB), allow_pickle=False
        )
        self._handle = _core.make_handle(self._sender._channel.arena, self._sender._channel.block)

    def frames(self) -> Iterator[bytes]:
        requests = [((handle, 1, None), value) for value in values() for handle in (self._handle, b"h" * 60)]
        requests.append(((self._handle, 1, time.monotonic() + 1e6), 5))
        requests.append(((7, True), ("ValueError", "text")))
        yield from with_placeholders(map(pack, requests))

    def registered(self) -> Iterator[tuple[str, Any]]:
        for deadline in (None, time.monotonic() + 1e6):
            yield "", (self._handle, 1, deadline)

    def put(self, frame: bytes) -> None:
        if self._replies.qsize():
            self._replies.get_many(16)
        self._damaged.put(frame)

    def read(self) -> object:
        # The service drops a message that is not a request, and waits for the next one: there is none.
        try:
            request = self._service.get(timeout=0)
        except queue.Empty:
            return self._replies.qsize()
        text_of(request.value)
        request.reply(None, timeout=0)
        return type(request.value)


TARGETS: dict[str, Callable[[], Target]] = {
    "unpack": Unpack,
    "describe": Describe,
    "channel": Channel,
    "service": Service,
}
