"""Writes the bytes of a shared list, to memory or to a file: header, frames, index of offsets.

docs/internals/list-layout.md describes them, and src/shared_list/list_reader.cpp reads them.
"""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Callable
from typing import Any

MAGIC = b"smt-list"
VERSION = 1
HEADER_BYTES = 128

# magic, version, bytes of the header, number of items, offset of the index, bytes of everything, identity
_HEADER = struct.Struct("<8sIIQQQ16s")
_FRAME_HEADER_BYTES = 16
#: Alignment of a frame with arrays, and of one without.
_WIDE, _NARROW = 64, 8

_FLUSH_BYTES = 1 << 20
_DIRECT_BYTES = 1 << 16  # a larger frame is written from where it is
_SEGMENT_ITEMS = 1 << 16


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
