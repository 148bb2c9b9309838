"""The bytes of a shared list, in memory and in a file: header, frames, index of offsets. docs/list-layout.md has them.

The bytes may come from anywhere, and a process may change a file while another one has it mapped. So a reader checks
each offset before it uses the offset, and the decoder of frames checks the rest.
"""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _core
from ..errors import CorruptMessage, IncompatibleMessage, PickleRefused

MAGIC = b"smt-list"
VERSION = 1
HEADER_BYTES = 128

# magic, version, bytes of the header, number of items, offset of the index, bytes of everything, identity
_HEADER = struct.Struct("<8sIIQQQ16s")
_FRAME_SIZE = struct.Struct("<Q")
_FRAME_SIZE_OFFSET, _FRAME_SIZE_MASK = 8, (1 << 48) - 1
_FRAME_HEADER_BYTES = 16
#: Alignment of a frame with arrays, and of one without.
_WIDE, _NARROW = 64, 8

_FLUSH_BYTES = 1 << 20
_DIRECT_BYTES = 1 << 16  # a larger frame is written from where it is
_SEGMENT_ITEMS = 1 << 16


class Header(NamedTuple):
    """The header of a list, checked against the size of its memory or file."""

    length: int
    index_offset: int
    nbytes: int
    identity: bytes


def read_header(fd: int, nbytes: int, what: str) -> Header:
    """Returns the header of an open file of that size.

    Raises:
        CorruptMessage: The file is no list, or is truncated.
        IncompatibleMessage: The file has another version.
    """
    begin = os.pread(fd, HEADER_BYTES, 0)
    if begin[: len(MAGIC)] != MAGIC:
        hint = "; it is one frame, which shmtree.load reads" if begin[:4] == b"SHMT" else ""
        raise CorruptMessage(f"{what} is not a shared list{hint}")
    if len(begin) < HEADER_BYTES:
        raise CorruptMessage(f"{what} is truncated: it has {nbytes} bytes, and the header alone has {HEADER_BYTES}")
    _, version, header_bytes, count, index_offset, size, identity = _HEADER.unpack_from(begin)
    if version != VERSION:
        raise IncompatibleMessage(f"{what} has version {version} of shared lists; this library reads {VERSION}")
    if size != nbytes:
        how = "is truncated" if size > nbytes else "has bytes after its end"
        raise CorruptMessage(f"{what} {how}: it has {nbytes} bytes, and its header says {size}")
    aligned = header_bytes == HEADER_BYTES and index_offset >= HEADER_BYTES and index_offset % _WIDE == 0
    if not aligned or index_offset + 8 * (count + 1) != size or any(begin[_HEADER.size :]):
        raise CorruptMessage(f"{what} has an invalid header: {count} items, index at {index_offset}, {size} bytes")
    return Header(count, index_offset, size, identity)


class Reader:
    """Finds the frames of a mapped list."""

    def __init__(self, mapped: Any, header: Header) -> None:
        self._bytes = memoryview(mapped)
        end = header.index_offset + 8 * (header.length + 1)
        self._index = self._bytes[header.index_offset : end].cast("Q")
        self._frames_end = header.index_offset

    def frame(self, number: int) -> memoryview:
        """Returns the bytes of the item of that number, from 0 to the number of items - 1."""
        index = self._index
        start, end = index[number], index[number + 1]
        if HEADER_BYTES <= start <= end - _FRAME_HEADER_BYTES and end <= self._frames_end and start % _NARROW == 0:
            (size,) = _FRAME_SIZE.unpack_from(self._bytes, start + _FRAME_SIZE_OFFSET)
            stop = start + (size & _FRAME_SIZE_MASK)
            if stop <= end:
                return self._bytes[start:stop]
        raise CorruptMessage(f"the index has invalid offsets: {start} and {end}")

    def item(self, number: int, allow_pickle: bool) -> Any:
        """Returns the item of that number. Its arrays are views."""
        try:
            return _core.unpack(self.frame(number), copy=False, allow_pickle=allow_pickle)
        except (CorruptMessage, PickleRefused) as error:
            error.args = (f"item {number}: {error}", *error.args[1:])
            raise


class Writer:
    """Appends frames to an empty file, then the index. Keeps 8 bytes per item in this process until the end.

    Args:
        fd: The file, open for writing. It stays open.
        before_write: Called with the number of bytes before each write.
    """

    def __init__(self, fd: int, before_write: Callable[[int], None] = lambda _: None) -> None:
        self._fd = fd
        self._before_write = before_write
        self._pending = bytearray(HEADER_BYTES)
        self._written = 0
        self._index = [array("Q")]
        self.count = 0

    def add(self, frame: Any) -> None:
        view = memoryview(frame)
        nbytes = view.nbytes
        metadata = int.from_bytes(view[4:8], "little")
        alignment = _NARROW if _FRAME_HEADER_BYTES + metadata == nbytes else _WIDE
        start = self._align(alignment)
        if len(self._index[-1]) == _SEGMENT_ITEMS:
            self._index.append(array("Q"))
        self._index[-1].append(start)
        self.count += 1
        if nbytes < _DIRECT_BYTES:
            self._pending += view
            if len(self._pending) >= _FLUSH_BYTES:
                self._flush()
        else:
            self._flush()
            self._write(view)

    def finish(self) -> None:
        """Writes the index, and then the header. Without them, no process takes the bytes for a list."""
        end = self._written + len(self._pending)
        index_offset = self._align(_WIDE)
        self._index[-1].append(end)
        self._flush()
        for number, segment in enumerate(self._index):
            self._write(memoryview(segment).cast("B"))
            self._index[number] = array("Q")  # frees its memory before the next one takes some
        header = _HEADER.pack(
            MAGIC, VERSION, HEADER_BYTES, self.count, index_offset, self._written, secrets.token_bytes(16)
        )
        if os.pwrite(self._fd, header, 0) != len(header):
            raise OSError("the header of the list was written only in part")

    def _align(self, alignment: int) -> int:
        """Appends zeros up to a multiple of `alignment`, and returns the offset."""
        position = self._written + len(self._pending)
        padding = -position % alignment
        self._pending += bytes(padding)
        return position + padding

    def _flush(self) -> None:
        if self._pending:
            self._write(memoryview(self._pending))
            self._pending = bytearray()

    def _write(self, view: memoryview) -> None:
        self._before_write(view.nbytes)
        self._written += view.nbytes
        while view.nbytes:
            view = view[os.write(self._fd, view) :]
