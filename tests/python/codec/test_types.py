"""Every type under "Types" in the documentation survives a round trip unchanged."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import sys
import uuid
from typing import Any

import pytest
from exact import assert_same

import shmtree


def through(value: object) -> Any:
    """Returns the value after a round trip that refuses pickles on both sides."""
    return shmtree.unpack(bytes(shmtree.pack(value, allow_pickle=False)))


SCALARS: dict[str, list[Any]] = {
    "constant": [None, True, False, Ellipsis, NotImplemented],
    "int": [0, 1, -1, 2**31, -(2**31) - 1, 2**62, 2**63 - 1, -(2**63)],
    "large int": [2**63, -(2**63) - 1, 2**64, 3**5000, -(3**5000)],
    "float": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, sys.float_info.max],
    "complex": [0j, complex(-0.0, math.nan), complex(1.5, -2.5)],
    "str": ["", "a", "reward", "\x00", "a\x00b", "\xff", "äöü", "日本語", "😀" * 3],
    "surrogates": ["\ud800", "a\udfffb", "\ud83d\ude00"],
    "long str": ["x" * 100, "x" * 5000, "ü" * 5000, "日" * 5000, "😀" * 5000, "\ud800" * 5000],
    "bytes": [b"", b"\x00", b"abc", bytes(range(256)), b"z" * 100_000],
    "bytearray": [bytearray(), bytearray(b"abc"), bytearray(b"z" * 100_000)],
    "memoryview": [memoryview(b"hello"), memoryview(bytes(range(256)) * 1000)],
    "numbers": [memoryview(array.array("d", [1.0, 2.0])).toreadonly()],
    "grid": [memoryview(bytes(range(12))).cast("B", (3, 4))],
    "bool beside int": [[value, True, 1, False, 0] for value in (1, 1.5, "x", True, None)],
}

REWARD = ["rew", "ard"]  # joined, it equals the literal, but is another object
CONTAINERS: dict[str, list[Any]] = {
    "empty": [[], (), {}, set(), frozenset()],
    "list": [[1, [2, [3, []]]], list(range(10_000)), [0.5] * 1000, ["obs", "reward"] * 500, [[], [[]], [[], [[]]]]],
    "tuple": [(1, (2, (3, ()))), [(), [], {}, (None,)]],
    "set": [{1, 2, 3}, {"a", b"a", 1.5, None, (1, 2)}, frozenset({1, "two", (3.0,)})],
    "dict": [{"a": {"b": {"c": {}}}}, {"z": 1, "a": 2, "m": 3}, {i: str(i) for i in range(1000)}],
    "keys of any type": [
        {1: "int", True + 1: "two", 2.5: "float", None: "none", (1, "x"): "tuple", b"k": "bytes", "k": "str"},
        {frozenset({1, 2}): "set", "\ud800": 1, "": 2, "x" * 300: 3},
        {"a": 1, b"a": 2, ("a",): 3, 1: 4, "1": 5, 1.5: 6},
        [{"a": [1], "b": {"c": (1,)}, 1: "int", "x" * 5000: "long", b"k": {"d": 1, None: 2}}, {"a": 1, "b": 2}],
    ],
    "equal keys": [
        [{"reward": 1, "".join(REWARD): 2}, {"".join(REWARD): i for i in range(3)}],
        [{f"key-{i}-{j}": i for i in range(500)} for j in range(3)],
    ],
}


class Point(collections.namedtuple("Point", "x y")):
    """A namedtuple subclass with methods, as typing.NamedTuple and hand-written ones have."""

    __slots__ = ()


Pair = collections.namedtuple("Pair", ["first", "second"])


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    A = 1
    B = 4


class Name(str, enum.Enum):
    ONE = "one"


ZONES = [
    dt.timezone.utc,
    dt.timezone(dt.timedelta(hours=-5, minutes=-30)),
    dt.timezone(dt.timedelta(hours=2), "CEST"),
]
STANDARD: dict[str, list[Any]] = {
    "namedtuple": [Pair(1, [2]), Point(1.0, None)],
    "enum": [Colour.RED, Colour.GREEN, Level.HIGH, Name.ONE, {Colour.RED: 1, Level.LOW: [Colour.GREEN]}],
    "flag": [Access.READ, Access.READ | Access.WRITE, Mode.A | Mode.B, Mode(0)],
    "OrderedDict": [collections.OrderedDict([("b", 1), ("a", [2])]), collections.OrderedDict()],
    "defaultdict": [collections.defaultdict(each, {"a": [1]}) for each in (list, None)]
    + [collections.defaultdict(int)],
    "Counter": [collections.Counter({"a": 2, 3: 1, (1, "b"): 7, None: -1})],
    "deque": [collections.deque([1, 2, 3], maxlen=limit) for limit in (None, 3, 0)],
    "timedelta": [dt.timedelta(0), dt.timedelta(days=-3, seconds=5, microseconds=7)],
    "timedelta limit": [dt.timedelta.max, dt.timedelta.min],
    "date": [dt.date(2024, 2, 29), dt.date.min, dt.date.max],
    "time": [dt.time(), dt.time(23, 59, 59, 999_999), dt.time(1, 2, fold=1), dt.time(1, 2, tzinfo=dt.timezone.utc)],
    "datetime": [dt.datetime(2024, 2, 29, 12, 30, 1, 5), dt.datetime.min, dt.datetime.max],
    "fold": [dt.datetime(2024, 10, 27, 2, 30, fold=1)],
    "zoned datetime": [dt.datetime(2024, 1, 1, tzinfo=zone) for zone in ZONES],
    "timezone": [dt.timezone.utc],
    "Decimal": [decimal.Decimal(text) for text in ("1.50", "-0", "Infinity", "1e-400")] + [decimal.Decimal(3) ** 200],
    "Fraction": [fractions.Fraction(-3, 7), fractions.Fraction(3**200, 7**200)],
    "UUID": [uuid.UUID("12345678-1234-5678-1234-567812345678"), uuid.UUID("6f9619ff-8b86-4d01-b42d-00cf4fc964ff")],
    "Path": [pathlib.Path("/tmp/x y"), pathlib.Path(), pathlib.Path("a/b\udcff")],
    "PurePath": [pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("C:/a")],
    "range": [range(0), range(10), range(10, -5, -3), range(-(2**63), 2**63 - 1, 2**62)],
    "slice": [slice(None), slice(1, 2, 3), slice("a", None, (1,))],
    "Cap'n Proto": [shmtree.CapnpMessage(0xD8A1B2C3D4E5F607, [bytes(range(16)), b""])],
}


def cases(*tables: dict[str, list[Any]]) -> list[Any]:
    """Returns a parameter for each value of the tables. Its id is the same in each worker of pytest-xdist."""
    groups = [each for table in tables for each in table.items()]
    return [pytest.param(value, id=f"{name}-{i}") for name, values in groups for i, value in enumerate(values)]


@pytest.mark.guarantee("exact-types")
@pytest.mark.parametrize("value", cases(SCALARS, CONTAINERS, STANDARD))
def test_value_round_trips_without_pickle(value: object) -> None:
    assert_same(through(value), value)


def test_range_beyond_64_bits_goes_through_pickle() -> None:
    value = range(2**70, 2**71, 2**60)
    assert shmtree.unpack(shmtree.pack([value])) == [value]


def test_details_that_equality_ignores_round_trip() -> None:
    assert through(dt.datetime(2024, 10, 27, 2, 30, fold=1)).fold == through(dt.time(2, 30, fold=1)).fold == 1
    for text in ("NaN", "-NaN123", "sNaN7"):  # a NaN keeps its payload and kind
        assert str(through(decimal.Decimal(text))) == text
    assert through(memoryview(bytes(range(12)))[::3]).tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("value", [Colour.RED, Level.HIGH, dt.timezone.utc], ids=str)
def test_unique_objects_arrive_as_themselves(value: object) -> None:
    assert through([value])[0] is value
    assert value is not dt.timezone.utc or through(dt.datetime(2024, 1, 1, tzinfo=value)).tzinfo is value


def test_depth_1000_round_trips_and_1001_raises() -> None:
    def nested(depth: int) -> list:
        value: list = []
        for _ in range(depth - 1):
            value = [value]
        return value

    got, depth = through(nested(1000)), 1
    while got:
        got, depth = got[0], depth + 1
    assert depth == 1000
    for value in (nested(1001), nested(10_000), {"a": (nested(100_000),)}):
        with pytest.raises(ValueError, match="1,?000"):
            shmtree.pack(value)


def test_packing_does_not_change_reference_counts() -> None:
    ours = "".join(["only this", " test has it"])  # the interpreter shares equal literals, also with other modules
    values = [[1], {"a": (1, 2)}, ours, 10**30, Pair(1, 2), Colour.RED]
    before = [sys.getrefcount(v) for v in values]
    for _ in range(100):
        shmtree.unpack(shmtree.pack(values))
    assert [sys.getrefcount(v) for v in values] == before
