"""Any value survives a round trip, and a damaged frame does no more than raise."""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import random
import types
import zoneinfo
from typing import Any

import numpy as np
import pytest
from exact import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shmtree

surrogates = st.text(st.characters(codec=None), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    surrogates,
    st.binary(max_size=50),
    st.binary(max_size=50).map(bytearray),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
)
keys = st.one_of(st.none(), st.booleans(), st.integers(), surrogates, st.binary(max_size=20), st.tuples(st.integers()))
dtypes = st.sampled_from("? i1 u1 <i2 >i2 <i4 >i4 <i8 <u8 <f2 <f4 >f4 <f8 >f8 <c8 <c16 S3 U2 <M8[ns] V5".split())


@st.composite
def arrays(draw: Any) -> np.ndarray:
    dtype = np.dtype(draw(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 2, count, np.uint8)
    made = raw.view(dtype).reshape(shape) if count else np.zeros(shape, dtype)
    if draw(st.booleans()):
        made = np.asfortranarray(made)
    if made.ndim and draw(st.booleans()):
        made = made[::-1]
    if draw(st.booleans()):
        made.flags.writeable = False
    return made


def nested(children: Any) -> Any:
    return st.one_of(
        st.lists(children, max_size=6),
        st.lists(children, max_size=6).map(tuple),
        st.dictionaries(surrogates, children, max_size=6),
        st.dictionaries(keys, children, max_size=6),
        st.dictionaries(keys, children, max_size=3).map(collections.OrderedDict),
        st.lists(children, max_size=3).map(collections.deque),
        st.sets(keys, max_size=6),
        st.frozensets(keys, max_size=6),
    )


trees = st.recursive(st.one_of(scalars, arrays()), nested, max_leaves=30)
relaxed = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.guarantee("exact-types")
@relaxed
@given(trees, st.sampled_from([None, True, False]))
def test_any_tree_round_trips(value: Any, copy: Any) -> None:
    assert_same(shmtree.unpack(bytearray(shmtree.pack(value, allow_pickle=False)), copy=copy), value)


@relaxed
@given(trees)
def test_any_tree_round_trips_through_pickle(value: Any) -> None:
    pair = [1]
    got = shmtree.unpack(shmtree.pack([value, pair, pair]))
    assert got[1] is got[2]
    assert type(got[0]) is type(value)


@relaxed
@given(trees)
def test_any_tree_can_be_described(value: Any) -> None:
    import io

    out = io.StringIO()
    shmtree.describe(shmtree.pack(value), file=out)
    assert out.getvalue().startswith("frame of")


@dataclasses.dataclass
class Step:
    obs: Any
    reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: int


Pair = collections.namedtuple("Pair", "first second")


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Wrapped:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


def tree_with_classes() -> Any:
    shmtree.register(Wrapped, lambda wrapped: {"inner": wrapped.inner}, lambda flat: Wrapped(flat))
    step = Step(np.arange(5), 1.5)
    return [
        step,
        Slotted(3),
        Pair(1, [2]),
        Access.READ,
        Access.READ | Access.WRITE,
        Wrapped([Wrapped(1)]),
        Pair(step, 2.5),
    ]


def tree_with_everything() -> Any:
    tz = dt.timezone(dt.timedelta(hours=2), "CEST")
    return {
        "array": np.arange(30.0).reshape(5, 6),
        "view": np.arange(4000, dtype=np.int32)[5:],
        "fortran": np.asfortranarray(np.ones((3, 4), np.float32)),
        "structured": np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]),
        "masked": np.ma.array([1, 2, 3], mask=[0, 1, 0]),
        "scalars": [np.float32(1.5), np.datetime64(5, "ns"), np.dtype(">i4"), np.str_("x"), np.bool_(True)],
        "text": ["a", "ü\ud800", "long" * 2000, b"bytes", b"long" * 2000, bytearray(b"x"), bytearray(9000)],
        "numbers": [1, -(2**63), 3**99, 1.5, 2j, True, None, ..., NotImplemented],
        "lists": [[1, 2, 3, 4], [0.5] * 5, (1, (2,)), {1, 2}, frozenset("ab"), range(5), slice(1, None, "x")],
        "collections": [
            collections.deque([1], 5),
            collections.OrderedDict(a=1),
            collections.defaultdict(list, a=[1]),
            collections.Counter("aab"),
        ],
        "times": [dt.datetime(2024, 1, 1, tzinfo=tz), dt.time(1, fold=1), dt.date.max, dt.timedelta(-1, 5), tz],
        "memory": memoryview(bytearray(range(50))),
        (1, "key"): {2.5: {"deep": {"deeper": [[[[]]]]}}},
    }


def tree_with_builders() -> Any:
    """Returns a strategy for values that Python code or the standard library builds."""
    return [
        np.ma.masked_array(np.arange(3.0), [0, 1, 0], fill_value=7),
        np.ma.masked_array(np.zeros(2, [("a", "i4"), ("b", "f8")]), [(0, 1), (1, 0)]),
        fractions.Fraction(-(3**99), 2**70),
        fractions.Fraction(3**9999, 2**9000),
        range(-5, 1 << 40, 3),
        Access.READ | Access.WRITE,
        decimal.Decimal("-1.5e99"),
        zoneinfo.ZoneInfo("UTC"),
        array.array("d", [1.0, 2.0]),
        types.SimpleNamespace(a=1),
        set(range(200)),
        dict.fromkeys(range(200)),
    ]


def survive(frame: bytes | bytearray, allow_pickle: bool = False) -> None:
    """Decodes a frame and reads all of the result. Fails on exceptions that a damaged frame must not raise."""
    for copy in (None, True, False):
        try:
            got = shmtree.unpack(frame, copy=copy, allow_pickle=allow_pickle)
        except (shmtree.CorruptMessage, shmtree.PickleRefused, MemoryError):
            continue
        with contextlib.suppress(Exception):  # repr() of a damaged value may fail
            repr(got)


def test_frame_cut_anywhere_raises_corrupt_message() -> None:
    frame = bytes(shmtree.pack(tree_with_everything()))
    for size in [*range(400), *range(400, len(frame), 97)]:
        with pytest.raises(shmtree.CorruptMessage):
            shmtree.unpack(frame[:size])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [tree_with_everything, tree_with_classes, tree_with_builders])
def test_every_changed_metadata_byte_is_read_or_refused(make: Any) -> None:
    frame = bytearray(shmtree.pack(make()))
    metadata = 16 + int.from_bytes(frame[4:8], "little")
    for position in range(metadata):
        original = frame[position]
        for value in (original ^ 1, original ^ 0x80, 0, 255):
            frame[position] = value
            survive(frame)
        frame[position] = original


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [tree_with_everything, tree_with_classes, tree_with_builders])
def test_random_damage_is_read_or_refused(make: Any) -> None:
    seed = 20240229
    generator = random.Random(seed)
    whole = bytes(shmtree.pack(make()))
    metadata = 16 + int.from_bytes(whole[4:8], "little")
    for _ in range(3000):
        frame = bytearray(whole)
        for _ in range(generator.randint(1, 8)):
            position = generator.randrange(metadata)
            size = generator.choice([1, 1, 2, 4, 8])
            frame[position : position + size] = generator.randbytes(size)
        survive(frame[: len(whole)])


@relaxed
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    survive(data)
    survive(b"SHMT" + data)
