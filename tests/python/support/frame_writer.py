"""Writes frames node by node, as a process without the library could.

Each part is well-formed, but the frame need not be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

#: Numbers of the kinds, from docs/internals/frame.md.
NONE, FALSE, TRUE, INT, BIG_INT, FLOAT, STR, BYTES, LONG_BYTES = 1, 2, 3, 4, 5, 6, 8, 10, 11
LIST, TUPLE, SET, DEQUE, DICT = 20, 21, 24, 26, 30
DATACLASS, ENUM_VALUE, REGISTERED, FRACTION, ZONE, RANGE, ARRAY, MASKED, CAPNP = 41, 43, 45, 61, 56, 64, 70, 73, 75
_ESCAPE = 255


class Writer:
    """Columns of one frame. Each method appends to them and returns the writer."""

    def __init__(self) -> None:
        self._kinds = bytearray()
        self._lengths = bytearray()
        self._ints: list[int] = []
        self._floats: list[float] = []
        self._text = bytearray()
        self._arrays = bytearray()
        self._buffers: list[bytes] = []
        self._views: list[int] = []
        self._externals = bytearray()
        self._names: dict[str, int] = {}

    def kind(self, kind: int) -> Writer:
        self._kinds.append(kind)
        return self

    def length(self, length: int) -> Writer:
        if length < _ESCAPE:
            self._lengths.append(length)
        else:
            self._lengths.append(_ESCAPE)
            self._ints.append(length)
        return self

    def int(self, number: int) -> Writer:
        self._ints.append(number)
        return self

    def float(self, number: float) -> Writer:
        self._floats.append(number)
        return self

    def text(self, text: bytes) -> Writer:
        return self.raw(text).length(len(text))

    def raw(self, text: bytes) -> Writer:
        """Appends to the text without a length."""
        self._text += text
        return self

    def name(self, name: str) -> Writer:
        if name in self._names:
            return self.length(self._names[name] + 1)
        self._names[name] = len(self._names)
        self.length(0)
        return self.text(name.encode())

    def array(self, dtype: int, shape: tuple[int, ...], buffer: int) -> Writer:
        return self.descriptor(dtype, 0, len(shape), buffer).lengths(shape)

    def descriptor(self, dtype: int, flags: int, dimensions: int, buffer: int) -> Writer:
        self._arrays += struct.pack("<BBBBI", dtype, flags, dimensions, 0, buffer)
        return self

    def lengths(self, lengths: Iterable[int]) -> Writer:
        for length in lengths:
            self.length(length)
        return self

    def view(self, offset: int) -> Writer:
        """Appends an offset or a stride."""
        self._views.append(offset)
        return self

    def external(self, reference: int, offset: int, size: int) -> Writer:
        self._externals += struct.pack("<IIQQ", reference, 0, offset, size)
        return self

    def mark(self, position: int) -> Writer:
        """Marks the node at `position` as one that references point to."""
        self._kinds[position] |= 0x80
        return self

    @property
    def nodes(self) -> int:
        return len(self._kinds)

    @property
    def buffers(self) -> int:
        return len(self._buffers)

    def buffer(self, contents: bytes) -> Writer:
        self._buffers.append(contents)
        return self

    def value(self, value: Any) -> Writer:
        if value is None:
            return self.kind(NONE)
        if isinstance(value, bool):
            return self.kind(TRUE if value else FALSE)
        if isinstance(value, int):
            if -(2**63) <= value < 2**63:
                return self.kind(INT).int(value)
            return self.kind(BIG_INT).text(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if isinstance(value, float):
            return self.kind(FLOAT).float(value)
        if isinstance(value, str):
            return self.kind(STR).text(value.encode())
        if isinstance(value, bytes):
            return self.kind(BYTES).text(value)
        if isinstance(value, range):
            return self.kind(RANGE).int(value.start).int(value.stop).int(value.step)
        if isinstance(value, tuple | list):
            return self.items(TUPLE if isinstance(value, tuple) else LIST, value)
        call: Callable[[Writer], Writer] = value
        return call(self)

    def items(self, kind: int, values: Any) -> Writer:
        self.kind(kind).length(len(values))
        for value in values:
            self.value(value)
        return self

    def frame(self) -> bytes:
        nodes = [
            (bytes(self._kinds), _BYTES),
            (bytes(self._lengths), _BYTES),
            (bytes(self._text), _BYTES),
            (struct.pack(f"<{len(self._ints)}q", *self._ints), _WORDS),
            (struct.pack(f"<{len(self._floats)}d", *self._floats), _WORDS),
        ]
        arrays = [
            (bytes(self._arrays), 1),
            (struct.pack(f"<{len(self._buffers)}Q", *map(len, self._buffers)), _WORDS),
            (struct.pack(f"<{len(self._views)}q", *self._views), _WORDS),
            (bytes(self._externals), 3),
        ]
        pointers, lists = _lists(nodes, after=1)
        if any(column for column, _ in arrays):
            pointers += struct.pack("<IHH", len(lists) // 8 << 2, 0, len(arrays))
            lists += b"".join(_lists(arrays, after=0))
        else:
            pointers += bytes(8)
        metadata = struct.pack("<IHH", 0, 0, len(nodes) + 1) + pointers + lists
        total = 16 + len(metadata)
        body = b""
        for contents in self._buffers:
            body += bytes(-(total + len(body)) % 64) + contents
        total += len(body)
        header = b"SHMT" + struct.pack("<I", len(metadata)) + total.to_bytes(6, "little") + bytes([2, 0])
        return header + metadata + body


#: Element types of a list. Any other number is the number of words of each struct.
_BYTES, _WORDS = -1, 0


def _lists(columns: list[tuple[bytes, int]], after: int) -> tuple[bytes, bytes]:
    """Encodes the pointers to columns as Cap'n Proto does, and the lists. `after`: other pointers before the lists."""
    pointers, lists = b"", b""
    for number, (column, elements) in enumerate(columns):
        offset = (len(columns) - 1 - number) + after + len(lists) // 8
        size = {_BYTES: 2, _WORDS: 5}.get(elements, 7)
        count = len(column) if elements == _BYTES else len(column) // 8
        pointers += struct.pack("<II", 1 | offset << 2, size | count << 3) if column else bytes(8)
        if elements > 0 and column:
            lists += struct.pack("<IHH", count // elements << 2, elements, 0)
        lists += column + bytes(-len(column) % 8)
    return pointers, lists
