"""Every type under "Types" in the documentation survives a round trip unchanged."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import sys
import uuid

import pytest
from exact import assert_same

import shmtree


def through(value: object, **options: object) -> object:
    """Returns the value after a round trip that refuses pickles on both sides."""
    return shmtree.unpack(bytes(shmtree.pack(value, allow_pickle=False)), **options)


SCALARS = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    -(2**31) - 1,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    3**5000,
    -(3**5000),
    0.0,
    -0.0,
    1.5,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    sys.float_info.max,
    0j,
    complex(-0.0, math.nan),
    complex(1.5, -2.5),
    "",
    "a",
    "reward",
    "\x00",
    "a\x00b",
    "\xff",
    "äöü",
    "日本語",
    "😀" * 3,
    "\ud800",
    "a\udfffb",
    "\ud83d\ude00",
    "x" * 100,
    "x" * 5000,
    "ü" * 5000,
    "日" * 5000,
    "😀" * 5000,
    "\ud800" * 5000,
    b"",
    b"\x00",
    b"abc",
    bytes(range(256)),
    b"z" * 100_000,
    bytearray(),
    bytearray(b"abc"),
    bytearray(b"z" * 100_000),
]


@pytest.mark.parametrize("value", SCALARS, ids=lambda v: f"{type(v).__name__}-{repr(v)[:24]!a}")
def test_scalars_round_trip(value: object) -> None:
    assert_same(through(value), value)


CONTAINERS = [
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, [2, [3, []]]],
    (1, (2, (3, ()))),
    [(), [], {}, (None,)],
    {"a": {"b": {"c": {}}}},
    {1: "int", True + 1: "two", 2.5: "float", None: "none", (1, "x"): "tuple", b"k": "bytes", "k": "str"},
    {frozenset({1, 2}): "set", "\ud800": 1, "": 2, "x" * 300: 3},
    {"z": 1, "a": 2, "m": 3},
    {i: str(i) for i in range(1000)},
    {1, 2, 3},
    {"a", b"a", 1.5, None, (1, 2)},
    frozenset({1, "two", (3.0,)}),
    list(range(10_000)),
    [0.5] * 1000,
    ["obs", "reward"] * 500,
    [[], [[]], [[], [[]]]],
]


def label(value: object) -> str:
    """Returns a name that is the same in each process: the order of a set depends on the hash seed."""
    text = f"of {len(value)}" if isinstance(value, (set, frozenset)) else repr(value)[:24]
    return f"{type(value).__name__}-{text!a}"


@pytest.mark.guarantee("exact-types")
@pytest.mark.parametrize("value", CONTAINERS, ids=label)
def test_containers_round_trip_with_order_and_item_types(value: object) -> None:
    assert_same(through(value), value)


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


STANDARD = [
    Pair(1, [2]),
    Point(1.0, None),
    Colour.RED,
    Colour.GREEN,
    Level.HIGH,
    Access.READ,
    Access.READ | Access.WRITE,
    Mode.A | Mode.B,
    Mode(0),
    Name.ONE,
    {Colour.RED: 1, Level.LOW: [Colour.GREEN]},
    collections.OrderedDict([("b", 1), ("a", [2])]),
    collections.OrderedDict(),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {"a": 1}),
    collections.defaultdict(int),
    collections.deque([1, 2, 3]),
    collections.deque([1, 2, 3], maxlen=3),
    collections.deque(maxlen=0),
    dt.timedelta(0),
    dt.timedelta(days=-3, seconds=5, microseconds=7),
    dt.timedelta.max,
    dt.timedelta.min,
    dt.date(2024, 2, 29),
    dt.date.min,
    dt.date.max,
    dt.time(),
    dt.time(23, 59, 59, 999_999),
    dt.time(1, 2, fold=1),
    dt.time(1, 2, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 2, 29, 12, 30, 1, 5),
    dt.datetime.min,
    dt.datetime.max,
    dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=-30))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2), "CEST")),
    dt.timezone.utc,
    decimal.Decimal("1.50"),
    decimal.Decimal("-0"),
    decimal.Decimal("Infinity"),
    decimal.Decimal("1e-400"),
    decimal.Decimal(3) ** 200,
    fractions.Fraction(-3, 7),
    fractions.Fraction(3**200, 7**200),
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
    uuid.UUID("6f9619ff-8b86-4d01-b42d-00cf4fc964ff"),
    pathlib.Path("/tmp/x y"),
    pathlib.Path(),
    pathlib.Path("a/b\udcff"),
    pathlib.PurePosixPath("/a/b"),
    pathlib.PureWindowsPath("C:/a"),
    range(0),
    range(10),
    range(10, -5, -3),
    range(-(2**63), 2**63 - 1, 2**62),
    slice(None),
    slice(1, 2, 3),
    slice("a", None, (1,)),
    Ellipsis,
    NotImplemented,
    shmtree.CapnpMessage(0xD8A1B2C3D4E5F607, [bytes(range(16)), b""]),
]


@pytest.mark.parametrize("value", STANDARD, ids=lambda v: f"{type(v).__name__}-{repr(v)[:32]!a}")
def test_standard_library_values_round_trip_without_pickle(value: object) -> None:
    assert_same(through(value), value)


def test_range_beyond_64_bits_goes_through_pickle() -> None:
    value = range(2**70, 2**71, 2**60)
    assert shmtree.unpack(shmtree.pack([value])) == [value]


def test_fold_round_trips() -> None:
    assert through(dt.datetime(2024, 10, 27, 2, 30, fold=1)).fold == 1
    assert through(dt.time(2, 30, fold=1)).fold == 1


def test_utc_is_the_same_object() -> None:
    assert through(dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)).tzinfo is dt.timezone.utc


def test_decimal_nan_keeps_its_payload_and_kind() -> None:
    for text in ("NaN", "-NaN123", "sNaN7"):
        assert str(through(decimal.Decimal(text))) == text


def test_enum_members_are_the_same_objects() -> None:
    assert through(Colour.RED) is Colour.RED
    assert through([Level.HIGH])[0] is Level.HIGH


@pytest.mark.parametrize("value", [1, 1.5, "x", True, None])
def test_bool_and_int_are_not_confused(value: object) -> None:
    assert_same(through([value, True, 1, False, 0]), [value, True, 1, False, 0])


def test_memoryview_arrives_as_a_memoryview() -> None:
    assert_same(through(memoryview(b"hello")), memoryview(b"hello"))
    large = memoryview(bytes(range(256)) * 1000)
    assert_same(through(large), large)


def test_memoryview_keeps_format_and_shape() -> None:
    import array

    numbers = memoryview(array.array("d", [1.0, 2.0, 3.0, 4.0]))
    got = through(numbers)
    assert (got.format, got.shape, got.tolist()) == ("d", (4,), [1.0, 2.0, 3.0, 4.0])
    grid = memoryview(bytes(range(12))).cast("B", (3, 4))
    got = through(grid)
    assert (got.shape, got.tolist()) == ((3, 4), grid.tolist())
    strided = memoryview(bytes(range(12)))[::3]
    assert through(strided).tolist() == [0, 3, 6, 9]


def test_keys_that_look_alike_stay_apart() -> None:
    value = {"a": 1, b"a": 2, ("a",): 3, 1: 4, "1": 5, 1.5: 6}
    assert_same(through(value), value)


def test_dict_with_later_keys_of_other_types_round_trips() -> None:
    held: list = [1]
    value = {"a": held, "b": {"c": (held[0],)}, 1: "int", "x" * 5000: "long", b"k": {"d": 1, None: 2}}
    assert_same(through([value, {"a": 1, "b": 2}]), [value, {"a": 1, "b": 2}])


def test_equal_keys_that_are_different_objects_round_trip() -> None:
    parts = ["rew", "ard"]
    value = [{"reward": 1, "".join(parts): 2}, {"".join(parts): i for i in range(3)}, {"".join(parts) + str(1): 2}]
    assert_same(through(value), value)


def test_many_keys_round_trip() -> None:
    value = [{f"key-{i}-{j}": i for i in range(500)} for j in range(3)]
    assert_same(through(value), value)


def test_repeated_keys_of_many_messages_are_the_same_string() -> None:
    through({"observation": 0})
    first, second = through({"observation": 1}), through({"observation": 2})
    assert next(iter(first)) is next(iter(second)) is sys.intern("observation")


def test_depth_1000_round_trips_and_1001_raises() -> None:
    def nested(depth: int) -> list:
        value: list = []
        for _ in range(depth - 1):
            value = [value]
        return value

    assert_same(len(bytes(shmtree.pack(nested(1000)))) > 0, True)
    got, depth = through(nested(1000)), 1
    while got:
        got, depth = got[0], depth + 1
    assert depth == 1000
    with pytest.raises(ValueError, match="1,?000"):
        shmtree.pack(nested(1001))
    with pytest.raises(ValueError, match="1,?000"):
        shmtree.pack(nested(10_000))
    with pytest.raises(ValueError, match="1,?000"):
        shmtree.pack({"a": (nested(100_000),)})


def test_packing_does_not_change_reference_counts() -> None:
    ours = "".join(["only this", " test has it"])  # the interpreter shares equal literals, also with other modules
    values = [[1], {"a": (1, 2)}, ours, 10**30, Pair(1, 2), Colour.RED]
    before = [sys.getrefcount(v) for v in values]
    for _ in range(100):
        shmtree.unpack(shmtree.pack(values))
    assert [sys.getrefcount(v) for v in values] == before
