"""Compares what three readers find in the metadata of random frames: shmtree's, the tool `capnp decode`, and pycapnp.

    python tests/capnp_readers/compare.py --columns PROGRAM [--frames N] [--seed N] [--pycapnp PYTHON]

PROGRAM is the program `columns`, which `./dev compile dev programs` puts into build/dev/tests/cpp. `--pycapnp` is a
Python with pycapnp; without it, two readers are compared. Half of the frames are packed here: random values of all
kinds. The others are written node by node, with numbers and names that no sender writes. The script compares each field
of each struct. Floats are compared bit by bit, except with the tool, which prints 15 digits.

The script prints the number of frames and of values, and fails at the first frame on which two readers differ.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python" / "support"), str(HERE.parent / "fuzz")]
from bindings_frames import Grow  # noqa: E402
from bindings_seeds import TENSORS, values  # noqa: E402

import shmtree  # noqa: E402

SCHEMA = HERE.parents[1] / "schema" / "shmtree.capnp"
AT_ONCE = 1000  # number of frames per start of a reader

Columns = dict[str, Any]


# ---------------------------------------------------------------- frames


class Values:
    """Makes random values: nested containers of random leaves, and of the fuzzer's seeds, which have all kinds."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._seeds = [value for value in values() if self._is_packed(value)]

    @staticmethod
    def _is_packed(value: Any) -> bool:
        try:
            shmtree.pack(value)
        except shmtree.Error:  # for example device memory, which a standalone frame cannot contain
            return False
        return True

    def leaf(self) -> Any:
        generator = self._generator
        bits = generator.randrange(1, 80)
        return generator.choice(
            (
                lambda: generator.getrandbits(bits) - generator.getrandbits(bits),
                lambda: struct.unpack("<d", generator.randbytes(8))[0],
                lambda: complex(*struct.unpack("<2d", generator.randbytes(16))),
                lambda: "".join(chr(generator.randrange(0x110000)) for _ in range(generator.randrange(12))),
                lambda: generator.randbytes(generator.choice((0, 1, 20, 300, 5000))),
                lambda: [generator.getrandbits(40) for _ in range(generator.choice((3, 300)))],
                lambda: generator.choice(self._seeds),
                lambda: generator.choice(self._seeds),
            )
        )()

    def value(self, depth: int = 0) -> Any:
        generator = self._generator
        if depth > 4 or generator.random() < 0.4:
            return self.leaf()
        items = [self.value(depth + 1) for _ in range(generator.randrange(5))]
        shape = generator.randrange(4)
        if shape == 0:
            return items
        if shape == 1:
            return tuple(items) + tuple(items[:1])  # repeat the first one
        return {(f"key {number}" if shape == 2 else number): item for number, item in enumerate(items)}


def frames(count: int, seed: int) -> Iterator[bytes]:
    generator = random.Random(seed)
    made, grow = Values(generator), Grow(generator)
    yield from TENSORS[: min(count, len(TENSORS))]
    for number in range(len(TENSORS), count):
        if number % 2 == 0:
            yield bytes(shmtree.pack(made.value()))
        else:
            yield grow.frame(False)


def metadata_of(frame: bytes) -> bytes:
    (size,) = struct.unpack_from("<I", frame, 4)
    return frame[16 : 16 + size]


# ---------------------------------------------------------------- readers


def lines_of(command: list[str], metadata: list[bytes]) -> list[Columns]:
    """Returns what a program prints for messages, as columns.cpp does."""
    messages = b"".join(len(each).to_bytes(8, "little") + each for each in metadata)
    done = subprocess.run(command, input=messages, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


_TOKEN = re.compile(rb'\s*(?:("(?:[^"\\]|\\.)*")|(0x"[^"]*")|([()\[\],=])|([^\s()\[\],="]+))', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _unescaped(text: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, letter = found.groups()
        if letter is not None:
            return _LETTERS.get(letter, letter)
        return bytes([int(octal, 8) if octal is not None else int(hexadecimal, 16)])

    return _ESCAPE.sub(one, text)


class Text:
    """Parser for what `capnp decode --short` prints for one message."""

    def __init__(self, line: bytes) -> None:
        self._tokens = [match for match in _TOKEN.finditer(line) if match.group().strip()]
        self._at = 0

    def value(self) -> Any:
        string, hexadecimal, sign, word = self._next()
        if string is not None:
            return _unescaped(string[1:-1])
        if hexadecimal is not None:
            return bytes.fromhex(hexadecimal[3:-1].decode())
        if sign == b"(":
            return dict(self._fields())
        if sign == b"[":
            return list(self._items())
        assert word is not None
        return float(word) if re.search(rb"[.eni]", word) else int(word)

    def _next(self) -> tuple[bytes | None, ...]:
        found = self._tokens[self._at]
        self._at += 1
        return found.groups()

    def _sign(self) -> bytes | None:
        return self._tokens[self._at].group(3)

    def _items(self) -> Iterator[Any]:
        while self._sign() != b"]":
            yield self.value()
            if self._sign() == b",":
                self._at += 1
        self._at += 1

    def _fields(self) -> Iterator[tuple[str, Any]]:
        while self._sign() != b")":
            name = self._next()[3]
            assert name is not None and self._next()[2] == b"="
            yield name.decode(), self.value()
            if self._sign() == b",":
                self._at += 1
        self._at += 1


def decoded(metadata: list[bytes]) -> list[Columns]:
    """Returns what `capnp decode` prints. It reads a stream of messages, each behind a table of its segments."""
    messages = b"".join(struct.pack("<II", 0, len(each) // 8) + each for each in metadata)
    command = ["capnp", "decode", "--short", str(SCHEMA), "Frame"]
    done = subprocess.run(command, input=messages, stdout=subprocess.PIPE, check=True)
    return [_columns(Text(line).value()) for line in done.stdout.splitlines()]


def _columns(frame: dict[str, Any]) -> Columns:
    arrays = frame.get("arrays", {})
    return {
        **{name: frame.get(name, b"").hex() for name in ("kinds", "lengths", "text")},
        "ints": frame.get("ints", []),
        "floats": [float(number) for number in frame.get("floats", [])],
        "arrays": [[each[name] for name in ("dtype", "flags", "ndim", "buffer")] for each in arrays.get("arrays", [])],
        "buffers": arrays.get("buffers", []),
        "views": arrays.get("views", []),
        "externals": [
            [each[name] for name in ("reference", "offset", "bytes")] for each in arrays.get("externals", [])
        ],
    }


# ---------------------------------------------------------------- comparison


def is_near(bits: int, printed: float) -> bool:
    """Returns True if `printed` is the float with these bits, to 15 digits."""
    (number,) = struct.unpack("<d", struct.pack("<Q", bits))
    if math.isnan(number) or math.isnan(printed):
        return math.isnan(number) and math.isnan(printed)
    rounded = float(f"{number:.15g}")  # may overflow to infinity
    return number == printed or rounded == printed


def difference(ours: Columns, other: Columns, prints_floats: bool) -> str:
    """Returns the first column that differs, or ""."""
    if ours.keys() != other.keys():
        return f"columns {sorted(ours)} and {sorted(other)}"
    for name, column in ours.items():
        if name == "floats" and prints_floats:
            same = len(column) == len(other[name]) and all(map(is_near, column, other[name]))
        else:
            same = column == other[name]
        if not same:
            return f"{name}: {column} and {other[name]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", required=True, type=pathlib.Path)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--pycapnp", metavar="PYTHON")
    options = parser.parse_args()
    if shutil.which("capnp") is None:
        parser.error("there is no capnp here")
    counts: Counter[str] = Counter()
    kinds: Counter[int] = Counter()
    readers = ["shmtree", "capnp decode", *(["pycapnp"] if options.pycapnp else [])]
    batch: list[bytes] = []

    def compare() -> None:
        ours = lines_of([str(options.columns)], batch)
        others = {"capnp decode": decoded(batch)}
        if options.pycapnp:
            command = [options.pycapnp, str(HERE / "pycapnp_columns.py"), str(SCHEMA)]
            others["pycapnp"] = lines_of(command, batch)
        for number, columns in enumerate(ours):
            for reader, found in others.items():
                assert len(found) == len(ours) == len(batch)
                differs = difference(columns, found[number], reader == "capnp decode")
                if differs:
                    where = f"frame {counts['frames'] + number}, seed {options.seed}"
                    raise SystemExit(f"shmtree and {reader} differ in {where}: {differs}\n{batch[number].hex()}")
            kinds.update(bytes.fromhex(columns["kinds"]))
            for name, column in columns.items():
                counts[name] += len(column) // 2 if isinstance(column, str) else len(column)
        counts["frames"] += len(batch)
        batch.clear()

    for frame in frames(options.frames, options.seed):
        batch.append(metadata_of(frame))
        if len(batch) == AT_ONCE:
            compare()
    if batch:
        compare()
    print(f"{', '.join(readers)} agree on {counts.pop('frames')} frames, seed {options.seed}")
    print(f"{len({kind & 127 for kind in kinds})} kinds of nodes; values:", json.dumps(dict(counts)))


if __name__ == "__main__":
    main()
