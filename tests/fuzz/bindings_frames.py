"""Frames that no sender writes, for tests/fuzz/bindings.py: damaged ones, and new ones that are nearly right."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from typing import Any

from bindings_seeds import CLASSES
from frame_writer import Writer

WORD = 2**64
#: Bytes of an element of each dtype, by its number in docs/internals/frame.md.
ITEM_BYTES = (0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 8, 16, 2, 1, 1, 1, 1, 1, 4)


class Damage:
    """Damages frames: mostly in their columns, if these can be located."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._columns: dict[bytes, list[tuple[int, int, int]]] = {}

    def columns(self, frame: bytes) -> list[tuple[int, int, int]]:
        """Returns number, first byte and size of each column. Cached, since a frame is damaged many times."""
        found = self._columns.get(frame)
        if found is None:
            if len(self._columns) > 5000:
                self._columns.clear()
            found = self._columns[frame] = list(_columns(frame))
        return found

    def damaged(self, frame: bytes) -> bytes:
        generator = self._generator
        made = bytearray(frame)
        columns = self.columns(frame)
        for _ in range(generator.choice((1, 1, 1, 2, 2, 3, 5, 8))):
            if columns and generator.random() < 0.85:
                self._change_column(made, *generator.choice(columns))
            else:
                self._change_bytes(made, min(len(made), 16 + int.from_bytes(made[4:8], "little")))
        if len(made) > 1 and generator.random() < 0.01:
            del made[generator.randrange(1, len(made)) :]
        return bytes(made)

    def _change_column(self, made: bytearray, number: int, first: int, size: int) -> None:
        generator = self._generator
        if number == _KINDS:
            kind = generator.choice(KINDS)
            made[first + generator.randrange(size)] = kind | (0x80 if generator.random() < 0.1 else 0)
        elif number == _LENGTHS:
            at = first + generator.randrange(size)
            made[at] = generator.choice((0, 1, 2, 3, made[at] ^ 1, (made[at] + 1) & 255, generator.randrange(256), 255))
        elif number == _TEXT:
            at = first + generator.randrange(size)
            piece = generator.choice((b"\0", b"\xff", b":", b"<", b"O", b"(", b"9", b"\xed\xa0\x80", b"\xff\xfe"))
            piece = piece[: first + size - at]
            made[at : at + len(piece)] = piece
        elif number == _DESCRIPTORS:
            at = first + generator.randrange(size)
            made[at] = generator.choice((0, 1, 2, 4, 8, 16, 32, generator.randrange(256), made[at] ^ 1))
        else:
            at = first + generator.randrange(size // 8) * 8
            before = int.from_bytes(made[at : at + 8], "little")
            made[at : at + 8] = self._word(before).to_bytes(8, "little")

    def _word(self, before: int) -> int:
        generator = self._generator
        chosen = generator.randrange(9)
        if chosen == 0:
            return generator.choice((0, 1, 2, 7, WORD - 1, 1 << 63, (1 << 63) - 1, 1 << 62, 1 << 40, 1 << 32, 1 << 24))
        if chosen == 1:
            return generator.getrandbits(64)
        if chosen == 2:
            return generator.getrandbits(generator.randrange(1, 64))
        if chosen == 3:
            return before ^ 1 << generator.randrange(64)
        return (before + generator.choice((1, -1, 4, -4, 8, -8, 64, before, -2 * before))) % WORD

    def _change_bytes(self, made: bytearray, limit: int) -> None:
        generator = self._generator
        if limit == 0:
            return
        at = generator.randrange(limit)
        piece = generator.randbytes(generator.choice((1, 1, 2, 4, 8)))[: len(made) - at]
        made[at : at + len(piece)] = piece


#: Numbers of columns, as _columns() yields them.
_KINDS, _LENGTHS, _TEXT, _DESCRIPTORS = 0, 1, 2, 6


def _columns(frame: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields the numbered columns: 0 to 5 for the struct Frame, and from 6 on for the struct Arrays."""
    end = min(len(frame), 16 + int.from_bytes(frame[4:8], "little"))
    if end < 24 + 6 * 8 or frame[15] != 0:
        return
    yield from _lists(frame, 24, 5, 0, end)
    (offset,) = struct.unpack_from("<i", frame, 24 + 5 * 8)
    arrays = 24 + 6 * 8 + (offset >> 2) * 8
    if offset != 0 and 0 <= arrays <= end - 4 * 8:
        yield from _lists(frame, arrays, 4, 6, end)


def _lists(frame: bytes, pointers: int, count: int, number: int, end: int) -> Iterator[tuple[int, int, int]]:
    for index in range(count):
        at = pointers + 8 * index
        low, high = struct.unpack_from("<iI", frame, at)
        if low & 3 != 1:
            continue
        first = at + 8 + (low >> 2) * 8
        size = (high >> 3) * (1 if high & 7 == 2 else 8)
        first += 8 if high & 7 == 7 else 0  # The tag of a list of structs.
        if 0 <= first < end and 0 < size <= end - first:
            yield number + index, first, size


#: Parts of each kind, in order. V: a node; W: a node, mostly of one of the kinds in SUITABLE; I: an int; F: a float;
#: L: a length; N: a name; S: a text and its length; U: 16 bytes of text; R: the position of a node; A: an array;
#: D: a dtype; E: a dtype and an element of it; G: an array, mostly one that can be a segment.
#: The letter n is a count, which the parts after it repeat; m is a count and a length, then that count of V.
GRAMMAR = {
    1: "", 2: "", 3: "", 4: "I", 5: "S", 6: "F", 7: "FF", 8: "S", 9: "A", 10: "S", 11: "A", 12: "S", 13: "A", 14: "W",
    15: "", 16: "", 17: "R", 20: "nV", 21: "nV", 22: "nI", 23: "nF", 24: "nW", 25: "nW", 26: "mV", 30: "nWV", 31: "nNV",
    32: "nWV", 33: "nNV", 34: "WnWV", 35: "nWV", 40: "NnV", 41: "NnNV", 42: "NN", 43: "NW", 44: "N", 45: "NV",
    46: "SnW", 47: "AnW", 50: "I", 51: "IL", 52: "IIL", 53: "II", 54: "", 55: "IL", 56: "N", 60: "S", 61: "WW",
    62: "U", 63: "LS", 64: "III", 65: "VVV", 70: "A", 71: "E", 72: "D", 73: "WWWL", 74: "LA", 75: "InG",
    76: "LLWnW",
}  # fmt: skip
KINDS = tuple(GRAMMAR)
SCALARS = (1, 2, 3, 4, 5, 6, 8, 10, 50, 54, 60, 61, 62, 63, 64)
#: For each kind, the kinds of its W parts, in order.
SUITABLE: dict[int, tuple[tuple[int, ...], ...]] = {
    14: ((70,),),
    24: ((*SCALARS, 21, 25, 40, 41, 42, 43, 71),),
    25: ((*SCALARS, 21, 25, 40, 41, 42, 43, 71),),
    30: ((*SCALARS, 21, 25, 40, 41),),
    32: ((*SCALARS, 21, 25),),
    34: ((1, 44), SCALARS),
    35: (SCALARS,),
    43: ((4, 4, 5, 8, 21),),
    46: ((70, 73),),
    47: ((70, 73),),
    61: ((4, 5), (4, 5)),
    73: ((70,), (2, 2, 70), (1, 1, 71, 70)),
    76: ((21,), (74,), (74,)),
}
DESCRIPTIONS = (
    ">f8", "<M8[25s]", "|S5", "<U7", "|V16", "<f2", "|O", "<U4096", "|S0", "<U0",
    "{'names': ['a'], 'formats': ['<i4']}",
    "{'names': ['a', 'b'], 'formats': ['<i4', ('>f8', (2,))], 'offsets': [0, 4], 'itemsize': 20}",
    "{'names': ['a', 'b'], 'formats': ['<i4', '<i4'], 'offsets': [0, 0], 'itemsize': 4}",
    "{'names': ['a'], 'formats': [{'names': ['b'], 'formats': ['|u1'], 'offsets': [0], 'itemsize': 1}], "
    "'offsets': [0], 'itemsize': 1, 'aligned': True}",
    "{'names': ['a'], 'formats': [('|u1', (1000000, 1000000))], 'offsets': [0], 'itemsize': 8}",
)  # fmt: skip
NAMES = (
    "a", "b", "x", "y", "reward", "done", "RED", "READ", "__class__", "__dict__", "", "UTC", "Europe/Paris", "../UTC",
)  # fmt: skip
TEXTS = (
    b"", b"a", b"1.5e99", b"NaN", b"-1", b"1e999999999", b"\xed\xa0\x80", b"\xff", b"\x80\x05N.", b"x" * 300, bytes(8),
)  # fmt: skip


#: Values that replace a part of a value.
ODD = (
    None, True, -1, 0, 1, 65, 1 << 31, 1 << 32, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 100, -1.5, "", "<f4",
    "float32", "torch", "array", "O", b"", b"x" * 16, b"h" * 64, (), (0,), (1, 2), (1 << 62,), range(3),
    range(1 << 62), [],
)  # fmt: skip


class Grow:
    """Writes frames with the parts that the kinds of their nodes require, but with numbers that no sender writes."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._writer = Writer()
        self._left = 0

    def frame(self, with_header: bool) -> bytes:
        self._writer = Writer()
        self._left = self._generator.choice((1, 2, 5, 10, 40))
        if with_header:
            self._writer.kind(21).length(2)
            self._node(0, (21,))
        self._node(0)
        return self._writer.frame()

    def registered(self, name: str, parts: Any, with_header: bool) -> bytes:
        """Returns a frame of a registered class, or of a plain tuple without a name, with a few odd parts."""
        for _ in range(self._generator.choice((0, 1, 1, 2, 3))):
            parts = self._changed(parts)
        writer = Writer()
        if with_header:
            writer.kind(21).length(2)
        if name:
            writer.kind(45).name(name)
        writer.value(parts)
        return (writer.value("value") if with_header else writer).frame()

    def _changed(self, value: Any) -> Any:
        generator = self._generator
        if isinstance(value, tuple) and value and generator.random() < 0.85:
            at = generator.randrange(len(value))
            return (*value[:at], self._changed(value[at]), *value[at + 1 :])
        if isinstance(value, bytes) and value and generator.random() < 0.7:
            at = generator.randrange(len(value))
            return value[:at] + generator.randbytes(1) + value[at + 1 :]
        return generator.choice(ODD)

    def _number(self) -> int:
        generator = self._generator
        if generator.random() < 0.7:
            return generator.randrange(-2, 70)
        bits = generator.randrange(1, 65)
        return generator.getrandbits(bits) - (1 << bits - 1) if bits < 64 else generator.choice((-(2**63), 2**63 - 1))

    def _count(self) -> int:
        return abs(self._number()) & (2**63 - 1)

    def _node(self, depth: int, suitable: tuple[int, ...] = ()) -> None:
        generator = self._generator
        self._left -= 1
        if suitable and generator.random() < 0.95:
            kind = generator.choice(suitable)
        elif self._left <= 0 or depth > 8:
            kind = generator.choice(SCALARS)
        else:
            kind = generator.choice(KINDS)
        position = self._writer.nodes
        self._writer.kind(kind)
        if generator.random() < 0.1:
            self._writer.mark(position)
        letters, values = GRAMMAR[kind], iter(SUITABLE.get(kind, ()) * 2)
        before, repeated, after = letters.partition("n")
        if "m" in letters:
            before, repeated, after = "", "n", "V"
        for letter in before:
            self._part(letter, depth, values)
        if not repeated:
            return
        count = generator.choice((0, 1, 1, 2, 3))
        self._writer.length(count if generator.random() < 0.98 else self._count())
        if "m" in letters:
            self._writer.length(self._count())
        rest = list(values)
        for _ in range(count):
            repeated_values = iter(rest)
            for letter in after:
                self._part(letter, depth, repeated_values)

    def _part(self, letter: str, depth: int, values: Iterator[tuple[int, ...]]) -> None:
        generator, writer = self._generator, self._writer
        if letter == "V":
            self._node(depth + 1)
        elif letter == "W":
            self._node(depth + 1, next(values, ()))
        elif letter == "I":
            writer.int(self._number())
        elif letter == "F":
            writer.float(generator.choice((0.0, -1.5, 1e308, float("nan"), float("inf"))))
        elif letter == "L":
            writer.length(generator.choice((0, 0, 1, 2, 3, self._count())))
        elif letter == "N":
            writer.name(generator.choice(CLASSES if generator.random() < 0.6 else NAMES))
        elif letter == "S":
            writer.text(generator.choice(TEXTS))
        elif letter == "U":
            writer.raw(bytes(16))
        elif letter == "R":
            writer.length(generator.randrange(writer.nodes + 1))
        elif letter == "A":
            self._array()
        elif letter == "G":
            self._segment()
        else:
            size = self._dtype()
            if letter == "E":
                writer.raw(bytes(size) if generator.random() < 0.9 else b"\xff")

    def _dtype(self) -> int:
        generator = self._generator
        if generator.random() < 0.7:
            dtype = generator.randrange(1, 22)
            self._writer.length(dtype)
            return ITEM_BYTES[dtype]
        self._writer.length(0).name(generator.choice(DESCRIPTIONS))
        size = generator.choice((0, 1, 4, 5, 8, 16, 20, 28))
        self._writer.length(size)
        return size

    def _segment(self) -> None:
        generator, writer = self._generator, self._writer
        if generator.random() < 0.1:
            return self._array()
        words = generator.choice((0, 1, 1, 3, 8))
        flags = 32 if words == 0 else generator.choice((0, 1, 1, 8))
        if words != 0 and (writer.buffers == 0 or generator.random() < 0.8):
            writer.buffer(bytes(8 * words + 8))
        writer.descriptor(3, flags, 1, max(writer.buffers - 1, 0) if words else 0).length(
            8 * words if generator.random() < 0.95 else self._count()
        )
        if flags & 8:
            writer.view(generator.choice((8, 8, 4, self._number())))
        return None

    def _array(self) -> None:
        generator, writer = self._generator, self._writer
        dtype = generator.randrange(22) if generator.random() < 0.8 else 0
        shape = [generator.choice((0, 1, 1, 2, 3, 8)) for _ in range(generator.choice((0, 1, 1, 1, 2, 3)))]
        if generator.random() < 0.1:
            shape = [self._count() for _ in range(generator.randrange(64))]
        size = ITEM_BYTES[dtype] if dtype else generator.choice((0, 1, 4, 5, 8, 16, 20, 28))
        count = math.prod(shape) * size
        flags = generator.choice((0, 0, 0, 1, 2, 4, 8, 12, 16, 28, generator.randrange(256)))
        if count == 0 and generator.random() < 0.9:
            flags = 32
        if flags & 48 == 0 and count < 4096:
            writer.buffer(bytes((count + 7 & ~7) + generator.choice((0, 0, 0, 8))))  # as in a placeholder
        if flags & 16:
            writer.external(generator.choice((0, 1, self._number() & 0xFFFFFFFF)), self._count(), self._count())
        last = 0 if flags & 48 else max(writer.buffers - 1, 0)
        writer.descriptor(dtype, flags, len(shape), last if generator.random() < 0.9 else generator.randrange(9))
        if dtype == 0:
            writer.name(generator.choice(DESCRIPTIONS)).length(size)
        writer.lengths(shape)
        if flags & 8:
            writer.view(generator.choice((0, 4, 8, self._number())))
        if flags & 4:
            for _ in shape:
                writer.view(generator.choice((size, -size, 0, 4, 8, self._number())))
