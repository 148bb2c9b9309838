"""Values and frames that tests/fuzz/bindings.py starts from."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import pathlib
import struct
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from frame_writer import Writer

import shmtree
from shmtree._codec import device_leaf


class Color(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Modes(enum.IntFlag):
    FAST = 1


class Point(NamedTuple):
    x: Any
    y: Any = 2


@dataclasses.dataclass
class Step:
    reward: Any
    done: Any = False


class Registered:
    def __init__(self, flat: Any) -> None:
        self.flat = flat


shmtree.register(Registered, lambda value: value.flat, Registered)
ARRAY = np.arange(24, dtype=np.float32).reshape(6, 4)
DEVICE = (
    ("array", "<f4", 0, (4,), None, False),
    (b"u" * 16, 5, 1025, 77),
    (b"d" * 16, b"h" * 64, 0, 64, b"e" * 64),
    np.zeros(64, np.uint8),
)


def references() -> Any:
    inner = [7]
    value: list[Any] = [{"a": inner}, inner, collections.deque([inner], 3), Step(inner)]
    value += [value, value[0], value[3]]
    shared = np.arange(6.0)
    return [value, shared, shared, shared[::2], Registered(inner)]


def masked() -> Any:
    made = [
        np.ma.masked_array(np.arange(3.0), [0, 1, 0], fill_value=7),
        np.ma.masked_array(np.arange(6).reshape(2, 3)),
        np.ma.masked_array(["a", "b"], [0, 1], fill_value="zz", hard_mask=True),
        np.ma.masked_array(np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]), [(0, (1, 0)), (1, (0, 0))]),
        np.ma.masked_array(np.zeros(2, "M8[s]"), [0, 1]),
    ]
    for part in made:
        part.fill_value  # noqa: B018  # NumPy makes it at its first use
    return made


def device(*changes: Any) -> device_leaf.DeviceLeaf:
    about, sender, location, token = DEVICE
    return device_leaf.DeviceLeaf(((*about[:3], *changes),) if changes else (about, sender, location, token))


SEEDS: dict[str, Callable[[], Any]] = {
    "scalars": lambda: [
        1, -(2**63), 3**99, 1.5, 2j, True, None, ..., NotImplemented, "ü\ud800", b"bytes", bytearray(b"x"),
        "long" * 2000, b"long" * 2000, decimal.Decimal("-1.5e99"), fractions.Fraction(-(3**99), 2**70),
        uuid.UUID(int=5), pathlib.PurePosixPath("/x"), range(-5, 1 << 40, 3), slice(1, None, "x"),
        zoneinfo.ZoneInfo("UTC"),
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")), dt.time(1, fold=1), dt.date.max,
        dt.timedelta(-1, 5), memoryview(bytearray(range(50))),
    ],
    "containers": lambda: [
        [1, 2, 3, 4], [0.5] * 5, (1, (2,)), {1, 2}, frozenset("ab"), collections.deque([1], 5), {"a": 1, 2: "b"},
        collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), collections.Counter("aab"),
        dict.fromkeys(range(200)), {(1, "key"): {2.5: {"deep": [[[[]]]]}}},
    ],
    "classes": lambda: [
        Color.RED, Access.READ | Access.WRITE, Modes(5), Point(1), Step(2.5), Registered([1, {"a": 2}]),
        types.SimpleNamespace(a=1), array.array("d", [1.0, 2.0]),
    ],
    "arrays": lambda: [
        ARRAY, ARRAY.T, ARRAY[:, 1], ARRAY[::-2], np.asfortranarray(ARRAY), np.zeros((0, 3)), np.float64(1.5),
        np.datetime64(5, "ns"), np.dtype(">i4"), np.dtype([("a", "<i4"), ("b", ">f8", (2,))]),
        np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]), np.array(["a", "bc"]), np.array(3),
        np.arange(2000, dtype=np.int32),
    ],
    "ranges": lambda: [range(10), range(-(2**63), 2**63 - 1), range(5, -5, -2), ARRAY[1:3], ARRAY[2:5], ARRAY],
    "masked arrays": masked,
    "capnp": lambda: [
        shmtree.CapnpMessage(0xD8A1B2C3D4E5F607, [bytes(40)]),
        shmtree.CapnpMessage(0, [bytes(8), b"", bytes(5000)]),
        shmtree.CapnpMessage(1 << 63, [ARRAY, ARRAY]),
        ARRAY.view(np.uint8)[3:],
    ],
    "references": references,
    "device": lambda: [device(), device((0, 3), None, True), device((0,), (8,), False)],
    "device tensor": lambda: device_leaf.DeviceLeaf((("torch", "float32", 0, (4,), (1,), False, True), *DEVICE[1:])),
    "service": lambda: ((b"h" * 60, 1, 1e9), {"value": [1, 2.5], "array": ARRAY[0]}),
    "service reply": lambda: ((7, True), ("ValueError", "text")),
    "pickles": lambda: [1, Step, complex, {"a": Step.__init__}],
    "small": lambda: {"reward": 1.5, "done": False, "step": 17},
}  # fmt: skip


def values() -> Iterator[Any]:
    """Yields each seed, and each item of a seed that is a list."""
    for make in SEEDS.values():
        made = make()
        yield made
        if isinstance(made, list):
            yield from made


def pack(value: Any) -> bytes:
    return bytes(shmtree.pack(value))


def tensor(flags: int, shape: tuple[int, ...], strides: tuple[int, ...] = (), dtype: int = 11) -> bytes:
    """Returns a frame of a tensor of torch. Works without torch."""
    writer = Writer().kind(74).length(flags).buffer(bytes(96)).descriptor(dtype, 12 if strides else 0, len(shape), 0)
    writer.lengths(shape)
    if strides:
        writer.view(8)
    for stride in strides:
        writer.view(stride)
    return writer.frame()


def flat(contents: bytes, padding: int) -> bytes:
    """Returns a frame of bytes alone."""
    size = 16 + padding + len(contents)
    return b"SHMT" + struct.pack("<I", padding) + size.to_bytes(6, "little") + bytes([2, 1]) + bytes(padding) + contents


#: Frames of bytes alone: a short one, one with padding, and one that is read as a buffer.
FLAT = (flat(b"bytes", 0), flat(b"bytes", 48), flat(b"x" * 5000, 48))
TENSORS = (tensor(0, (24,)), tensor(1, (6, 4)), tensor(3, (2, 3), (8, 16)), tensor(0, (48,), dtype=15))

#: Names of classes for messages: the classes above, classes of shmtree, and some that receivers must refuse.
CLASSES = (
    *(f"{__name__}:{name}" for name in ("Color", "Access", "Modes", "Point", "Step", "Registered", "pack")),
    "shmtree._leaves:DeviceLeaf", "shmtree:Sender", "shmtree:Receiver", "shmtree:Queue",
    "shmtree:Connection", "shmtree:SharedArray", "shmtree:Arena", "array:array", "types:SimpleNamespace",
    "builtins:list", "builtins:int", "builtins:dict", "builtins:exec", "collections:OrderedDict", "os:system",
)  # fmt: skip
