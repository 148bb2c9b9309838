"""Values that Python code builds from well-formed parts of a hostile message are bounded, and only data."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import datetime
import enum
import fractions
import importlib.util
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frame_writer as fw
import numpy as np
import pytest
from frame_writer import Writer

import shmtree
from shmtree._codec import device_leaf

LEAF = device_leaf.DeviceLeaf
PRIME = (1 << 61) - 1  # hash(k * PRIME) is 0
MIB = 1 << 20


def device(shape: Any, strides: Any = None, kind: str = "array", dtype: str | None = None) -> Any:
    """A DeviceLeaf for memory that the message does not contain."""
    dtype = dtype or ("<f4" if kind == "array" else "float32")
    return LEAF(((kind, dtype, 0, shape, strides, False, *(() if kind == "array" else (False,))),))


DEVICE_LEAVES = {
    "a range for a shape": device(range(1 << 62)),
    "ranges for shape and strides": device(range(10_000_000), range(10_000_000)),
    "a million dimensions": device((1,) * 1_000_000),
    "65 dimensions": device((0,) * 65),
    "a count beyond all memory": device((1 << 62,)),
    "a negative count": device((-1,)),
    "a bool for a count": device((True,)),
    "a text for a count": device(("a",)),
    "a text for a stride": device((0,), ("x",)),
    "another number of strides": device((0, 0), (1,)),
    "a huge dtype": device((0,), dtype="<f" + "4" * 1000),
    "objects": device((0,), dtype="O"),
    "a dtype of a size that NumPy lacks": device((0,), dtype="<f9"),
    "a dtype that NumPy warns of": device((0,), dtype="<f4,<f4"),
    "an array of four elements without memory": device((4,)),
    "an unknown kind": device((0,), kind="thing"),
    "a text": LEAF("abc"),
    "a dict": LEAF({0: 1}),
    "a list": LEAF([]),
    "a set as about": LEAF(({1},)),
    "a range": LEAF(range(1 << 62)),
    "ranges for the rest": LEAF((("array", "<f4", 0, (0,), None, False), range(4), range(5), 0)),
    "another arena's token": LEAF(
        (
            ("array", "<f4", 0, (4,), None, False),
            (b"u" * 16, 5, 1025, 77),
            (b"d" * 16, b"h" * 64, 0, 4096, b"e" * 64),
            0,
        )
    ),
}


@pytest.fixture
def named() -> Iterator[tuple[Any, Any]]:
    """A pair that refuses pickles."""
    sender, receiver = shmtree.create_pair(name=f"building-{os.getpid()}")
    with sender, receiver:
        yield sender, receiver


def cost_of(act: Callable[[], object]) -> tuple[int, float]:
    """Returns the peak bytes that Python allocates in a call that raises CorruptMessage, and its CPU seconds."""
    tracemalloc.start()
    began = time.thread_time()
    with pytest.raises((shmtree.CorruptMessage, shmtree.PickleRefused)):
        act()
    seconds = time.thread_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, seconds


@pytest.mark.guarantee("bounded-values")
@pytest.mark.parametrize("leaf", DEVICE_LEAVES.values(), ids=DEVICE_LEAVES)
@pytest.mark.filterwarnings("error")
def test_malformed_device_leaf_is_corrupt(leaf: Any, named: tuple[Any, Any]) -> None:
    sender, receiver = named
    sender.put(leaf)
    sender.put("the next one")
    peak, _ = cost_of(lambda: receiver.get(timeout=60))
    assert peak < 16 * MIB  # the message itself contains a tuple of a million numbers
    assert receiver.get(timeout=60) == "the next one"


def test_random_device_leaves_leave_the_channel_usable(named: tuple[Any, Any]) -> None:
    sender, receiver = named
    generator = random.Random(20261126)
    odd = [
        None, True, -1, 0, 1, 65, 1 << 62, 1 << 100, 1.5, "", "<f4", "float32", "torch", "array",
        b"", b"x" * 16, b"h" * 64, (), (0,), (1, 2), (1 << 62,), range(3), range(1 << 62), [], {}, {1}, slice(1), ...,
    ]  # fmt: skip
    sound = (
        ("array", "<f4", 0, (4,), None, False),
        (b"u" * 16, 5, 1025, 77),
        (b"d" * 16, b"h" * 64, 0, 64, b"e" * 64),
        0,
    )
    for _ in range(2000):
        flat: list[Any] = [list(part) if isinstance(part, tuple) else part for part in sound]
        for _ in range(generator.randint(1, 3)):
            part = generator.choice(flat)
            into = flat if not isinstance(part, list) or not part or generator.random() < 0.2 else part
            if into:
                into[generator.randrange(len(into))] = generator.choice(odd)
        tuples = [tuple(part) if isinstance(part, list) else part for part in flat]
        sender.put(LEAF(tuple(tuples[: generator.choice([1, 4, 4])])))
        with contextlib.suppress(shmtree.CorruptMessage, shmtree.PickleRefused):
            receiver.get(timeout=60)
    sender.put("the next one")
    assert receiver.get(timeout=60) == "the next one" and receiver.dead_letters() == []


@pytest.mark.parametrize("identity", [1 << 32, (1 << 62) - 1])
def test_device_memory_of_an_impossible_participant_is_corrupt(identity: int, named: tuple[Any, Any]) -> None:
    sender = (named[0]._channel.arena.uuid, 5, identity, 77)
    location = (b"d" * 16, b"h" * 64, 0, 16, b"e" * 64)
    named[0].put(LEAF((("array", "<f4", 0, (4,), None, False), sender, location, 0)))
    with pytest.raises(shmtree.CorruptMessage):
        named[1].get(timeout=60)


@pytest.mark.parametrize("leaf", [device((0,)), device(range(1 << 62)), device((0,), kind="torch")])
def test_unpack_refuses_device_memory(leaf: Any, tmp_path: Path) -> None:
    frame = bytes(shmtree.pack(leaf, allow_pickle=False))
    (tmp_path / "frame").write_bytes(frame)
    modules = set(sys.modules)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.unpack(frame)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.load(tmp_path / "frame")
    assert set(sys.modules) == modules


def test_empty_device_array_arrives_through_a_channel(named: tuple[Any, Any]) -> None:
    named[0].put(device((0, 3)))
    assert named[1].get(timeout=60).shape == (0, 3)


def test_tensor_imports_torch_only_if_allow_pickle_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    tensor = Writer().kind(74).length(0).array(11, (2,), 0).buffer(bytes(8)).frame()
    with pytest.raises(shmtree.PickleRefused, match="import torch"):
        shmtree.unpack(tensor)
    assert "torch" not in sys.modules


def test_tensor_with_a_dtype_that_torch_lacks_is_incompatible(
    named: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = types.ModuleType("torch")
    torch.dtype, torch.__version__ = type("dtype", (), {}), "1.0"
    tensor = Writer().kind(fw.LIST).length(1).kind(74).length(0).array(11, (2,), 0).buffer(bytes(8)).frame()
    named[0].put([device((0,), (1,), kind="torch")])
    monkeypatch.setitem(sys.modules, "torch", torch)
    for receive in (lambda: shmtree.unpack(tensor), lambda: named[1].get(timeout=60)):
        with pytest.raises(shmtree.IncompatibleMessage, match=r"float32, which torch 1\.0 does not have") as caught:
            receive()
        assert caught.value.path == "[0]"


# --- masked arrays ----------------------------------------------------------------------------------------------------


def masked(fill: Any) -> bytes:
    writer = Writer().kind(fw.MASKED).kind(fw.ARRAY).array(11, (3,), 0).kind(fw.FALSE).value(fill).length(0)
    return writer.buffer(bytes(12)).frame()


def test_hand_written_masked_array_arrives() -> None:
    assert shmtree.unpack(masked(None)).tolist() == [0.0, 0.0, 0.0]


FILLS = {
    "a range": range(1 << 62),
    "a list of a range": [range(1 << 62)],
    "a huge int": 1 << 100_000,
    "an int": 9,
    "a text": "text",
    "a tuple": (1, 2),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_fill_value_that_is_not_a_scalar_is_corrupt(fill: Any) -> None:
    frame = masked(fill)
    peak, _ = cost_of(lambda: shmtree.unpack(frame))
    assert peak < MIB


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        np.ma.masked_array(np.zeros(3, "i1"), [0, 1, 0], fill_value=7),
        np.ma.masked_array(["a", "b"], [0, 1], fill_value="zz"),
        np.ma.masked_array(np.zeros(2, [("a", "i4"), ("b", "f8")]), [(0, 1), (1, 0)]),
        np.ma.masked_array(np.zeros(2, "M8[s]"), [0, 1]),
    ],
)
def test_masked_arrays_arrive_with_their_fill_values(array: Any) -> None:
    array.fill_value  # noqa: B018  # which NumPy makes at its first use
    made = shmtree.unpack(shmtree.pack(array, allow_pickle=False))
    assert repr(made.fill_value) == repr(array.fill_value) and made.fill_value.dtype == array.fill_value.dtype
    assert np.array_equal(made.mask, array.mask) and np.array_equal(made.data, array.data)


# --- messages that cannot be made -------------------------------------------------------------------------------------


class Heavy:
    """Unpickling an instance always raises MemoryError."""


def no_memory(_: Any) -> Any:
    raise MemoryError("not for this one")


shmtree.register(Heavy, lambda _: 1, no_memory)


def take(receiver: Any) -> Any:
    with receiver.take(timeout=60) as delivery:
        return delivery.item


@pytest.mark.guarantee("poison-message")
@pytest.mark.parametrize("receive", [lambda receiver: receiver.get(timeout=60), take], ids=["get", "take"])
def test_message_is_dead_lettered_after_repeated_memory_errors(receive: Any, named: tuple[Any, Any]) -> None:
    sender, receiver = named
    sender.put(Heavy())
    sender.put("the next one")
    received, tries = None, 0
    while received is None and tries < 100:
        try:
            received = receive(receiver)
        except MemoryError:
            tries += 1
    assert received == "the next one" and 1 < tries < 20
    (rejected,) = receiver.dead_letters()
    with pytest.raises(MemoryError):
        rejected.item  # noqa: B018
    rejected.ack()
    assert receiver.dead_letters() == [] and receiver.qsize() == 0


def test_get_many_continues_after_memory_errors(named: tuple[Any, Any]) -> None:
    sender, receiver = named
    sender.put_many([1, Heavy(), 2])
    received: list[Any] = []
    for _ in range(100):
        try:
            received += receiver.get_many(5, timeout=60)
        except MemoryError:
            continue
        if len(received) == 2:
            break
    assert received == [1, 2] and len(receiver.dead_letters()) == 1


class Sometimes:
    """Loading an instance raises MemoryError unless `lacks_memory` is empty."""


lacks_memory: list[int] = []
shmtree.register(Sometimes, lambda _: 1, lambda flat: no_memory(flat) if lacks_memory else "made")


def test_only_consecutive_memory_errors_dead_letter_a_message(named: tuple[Any, Any]) -> None:
    sender, receiver = named
    sender.put(Sometimes())
    for _ in range(12):
        receiver.take(timeout=60).nack()
    for _ in range(7):
        lacks_memory.append(1)
        with pytest.raises(MemoryError):
            receiver.get(timeout=60)
        lacks_memory.clear()
        receiver.take(timeout=60).nack()
    assert receiver.get(timeout=60) == "made" and receiver.dead_letters() == []


def test_max_attempts_also_limits_memory_errors() -> None:
    sender, receiver = shmtree.create_pair(max_attempts=2)
    sender.put(Heavy())
    for _ in range(2):
        with pytest.raises(MemoryError):
            receiver.get(timeout=60)
    assert len(receiver.dead_letters()) == 1


# --- work in proportion -----------------------------------------------------------------------------------------------


class Alarm(Exception):
    """The exception that the signal handler raises."""


class Signals:
    """Building an instance sends this process a signal, without running Python code."""


class Ends:
    """Building an instance records that the end of the message was reached, without running Python code."""


ended: list[Any] = []
shmtree.register(Signals, lambda _: int(signal.SIGUSR1), ctypes.CDLL(None)["raise"])
shmtree.register(Ends, lambda _: None, ended.append)


@pytest.fixture
def alarmed(no_collector_callbacks: None) -> Iterator[None]:
    """Makes SIGUSR1 raise Alarm during a test."""

    def raises(*_: Any) -> None:
        raise Alarm

    ended.clear()
    before = signal.signal(signal.SIGUSR1, raises)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_fractions_of_huge_ints_are_built_in_linear_time() -> None:
    generator = random.Random(1)
    numerator, denominator = (generator.getrandbits(1 << 23) | 1 for _ in range(2))
    frame = Writer().kind(fw.FRACTION).value(numerator).value(denominator).frame()
    made = shmtree.unpack(frame)  # a search for a common divisor would take a minute
    assert type(made) is fractions.Fraction
    assert made.numerator == numerator and made.denominator == denominator


@pytest.mark.parametrize("denominator", [0, -1, -(1 << 100_000)], ids=["zero", "negative", "huge"])
def test_fraction_with_a_bad_denominator_is_corrupt(denominator: int) -> None:
    frame = Writer().kind(fw.FRACTION).value((1 << 100_000) + 1).value(denominator).frame()
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(frame)


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_fractions_round_trip(size: int) -> None:
    value = fractions.Fraction((1 << size) + 1, 3**5)
    assert shmtree.unpack(shmtree.pack(value, allow_pickle=False)) == value


def keys(count: int, each: Callable[[int], int]) -> dict[str, bytes]:
    numbers = [each(i) for i in range(1, count + 1)]
    pairs = Writer().kind(fw.DICT).length(count)
    for number in numbers:
        pairs.value(number).value(None)
    return {"set": Writer().items(fw.SET, numbers).frame(), "dict": pairs.frame()}


@pytest.mark.guarantee("bounded-values")
@pytest.mark.parametrize("kind", ["set", "dict"])
def test_many_keys_with_equal_hashes_are_refused(kind: str) -> None:
    frame = keys(100_000, lambda k: k * PRIME)[kind]
    with pytest.raises(shmtree.CorruptMessage, match="the same hash"):
        shmtree.unpack(frame)


@pytest.mark.parametrize("each", [lambda k: k, lambda k: k << 32, lambda k: -k, lambda k: k * 4096])
def test_large_sets_and_dicts_of_ints_arrive(each: Callable[[int], int]) -> None:
    numbers = {each(k) for k in range(200_000)}
    assert shmtree.unpack(shmtree.pack(numbers, allow_pickle=False)) == numbers
    pairs = dict.fromkeys(numbers, 1)
    assert shmtree.unpack(shmtree.pack(pairs, allow_pickle=False)) == pairs


raised_by_hash: list[BaseException] = []


@dataclasses.dataclass(frozen=True)
class Key:
    number: int

    def __hash__(self) -> int:
        if raised_by_hash:
            raise raised_by_hash.pop()
        return self.number


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("make", [set, dict.fromkeys], ids=["set", "dict"])
def test_interrupt_or_memory_error_in_a_key_hash_is_raised(make: Any, error: type[BaseException]) -> None:
    frame = bytes(shmtree.pack(make(map(Key, range(200))), allow_pickle=False))
    raised_by_hash.append(error())
    with pytest.raises(error):
        shmtree.unpack(frame)
    assert not raised_by_hash
    assert len(shmtree.unpack(frame)) == 200


def test_powers_of_two_are_accepted_as_keys() -> None:
    """Powers of two have only 61 different hashes."""
    numbers = {1 << k for k in range(5000)}
    assert shmtree.unpack(shmtree.pack(numbers, allow_pickle=False)) == numbers


LONG = {
    "lists": [[i] for i in range(50_000)],
    "texts": [str(i) for i in range(50_000)],
    "tuple": tuple(str(i) for i in range(50_000)),
    "ints": list(range(100_000)),
    "floats": [i / 2 for i in range(100_000)],
    "set": set(range(50_000)),
    "dict": {i: i for i in range(50_000)},
    "deque": collections.deque(range(50_000)),
}


@pytest.mark.usefixtures("alarmed")
@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_signal_handler_runs_while_a_large_frame_is_read(value: Any) -> None:
    frame = bytes(shmtree.pack([Signals(), value, Ends()], allow_pickle=False))
    with pytest.raises(Alarm):
        shmtree.unpack(frame)
    assert not ended


@pytest.mark.parametrize("receive", [lambda receiver: receiver.get(timeout=60), take], ids=["get", "take"])
def test_message_stays_if_a_signal_handler_raises(receive: Any, named: tuple[Any, Any], alarmed: None) -> None:
    sender, receiver = named
    sender.put([Signals(), LONG["lists"], Ends()])
    for _ in range(20):
        with pytest.raises(Alarm):
            receive(receiver)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert receive(receiver)[1] == LONG["lists"] and receiver.dead_letters() == []


class Permission(enum.IntFlag):
    READ = 1
    WRITE = 2


class Colour(enum.Flag):
    RED = 1
    GREEN = 2
    BLUE = 4


def flag(cls: type, value: int) -> bytes:
    return Writer().kind(fw.ENUM_VALUE).name(f"{cls.__module__}:{cls.__qualname__}").value(value).frame()


def test_intflag_does_not_keep_unnamed_members() -> None:
    shmtree.unpack(flag(Permission, 2047))  # Python 3.10 creates a member for each bit
    before = len(Permission._value2member_map_)
    for value in range(8, 2000):
        assert shmtree.unpack(flag(Permission, value)) == value
    assert len(Permission._value2member_map_) == before


def test_unpack_keeps_existing_members_of_an_intflag() -> None:
    both = Permission.READ | Permission.WRITE
    for value in (-1, -2, -3, -4):
        assert shmtree.unpack(flag(Permission, value)) == Permission(value)
    assert Permission(1) is Permission.READ and Permission.READ | Permission.WRITE is both


def test_flag_arrives_as_the_existing_member() -> None:
    both = Colour.RED | Colour.BLUE
    assert shmtree.unpack(flag(Colour, 5)) is both
    assert shmtree.unpack(shmtree.pack(Colour.GREEN | Colour.BLUE, allow_pickle=False)) is Colour.GREEN | Colour.BLUE


@pytest.mark.parametrize("value", [1 << 1_000_000, 1 << 600, "text", 8], ids=["huge", "large", "text", "unknown"])
def test_impossible_flag_value_is_corrupt(value: Any) -> None:
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(flag(Colour, value))


if sys.version_info >= (3, 11):

    class Conforming(enum.Flag, boundary=enum.CONFORM):
        A = 1
        B = 2

    class Keeping(enum.Flag, boundary=enum.KEEP):
        A = 1

    class Renamed(enum.Flag, boundary=enum.CONFORM):
        A = 1

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.A


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a Flag has a boundary since Python 3.11")
@pytest.mark.parametrize("allow_pickle", [False, True])
def test_flag_never_arrives_with_fewer_bits(allow_pickle: bool) -> None:
    for value in (5, 4, 1 << 100):
        with pytest.raises(shmtree.IncompatibleMessage, match=r"no member of .* here.*Members here: .*A"):
            shmtree.unpack(flag(Conforming, value), allow_pickle=allow_pickle)
    assert shmtree.unpack(flag(Conforming, 3), allow_pickle=allow_pickle) is Conforming.A | Conforming.B
    assert shmtree.unpack(flag(Keeping, 5), allow_pickle=allow_pickle).value == 5
    assert shmtree.unpack(flag(Renamed, 8), allow_pickle=allow_pickle) is Renamed.A


class Picky(enum.IntFlag):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        cls._value2member_map_[value] = cls.A
        raise ValueError("no other values")


class PickyFlag(enum.Flag):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise ValueError("no other values")


@pytest.mark.parametrize("cls", [PickyFlag, Picky])
def test_error_for_an_unknown_flag_bit_names_class_and_members(cls: type[enum.Flag]) -> None:
    frame = Writer().kind(fw.LIST).length(1).kind(fw.ENUM_VALUE).name(f"{__name__}:{cls.__name__}").value(8).frame()
    with pytest.raises(shmtree.IncompatibleMessage, match=r"no member of the value 8 here.*Members here") as caught:
        shmtree.unpack(frame)
    assert caught.value.path == "[0]"


def test_flag_gets_a_limited_number_of_members() -> None:
    many = enum.Flag("many", [f"BIT{i}" for i in range(40)], module=__name__, qualname="many")
    globals()["many"] = many
    for value in range(1, 1000):
        shmtree.unpack(flag(many, value))
    frames = (flag(many, value) for value in range(1000, 20_000))
    with pytest.raises(shmtree.CorruptMessage, match="too many unnamed members"):
        list(map(shmtree.unpack, frames))


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "a/b/c/d/e", "x" * 100, "a\0b", "America/", "", "a//b"]
)
def test_malformed_zone_key_is_not_searched_for(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    sys.addaudithook(lambda event, arguments: opened.append(arguments) if event in ("open", "import") and on else None)
    on = True
    try:
        with pytest.raises(shmtree.CorruptMessage):
            shmtree.unpack(Writer().kind(fw.ZONE).name(key).frame())
    finally:
        on = False
    assert not opened


def test_hand_written_bytes_in_a_buffer_arrive() -> None:
    frame = Writer().kind(fw.LONG_BYTES).array(3, (10,), 0).buffer(bytes(10)).frame()
    assert shmtree.unpack(frame) == bytes(10)


def test_repeated_copies_of_the_same_bytes_are_refused() -> None:
    count = 1000
    writer = Writer().kind(fw.LIST).length(count)
    for _ in range(count):
        writer.kind(fw.LONG_BYTES).array(3, (MIB,), 0)
    frame = writer.buffer(bytes(MIB)).frame()
    with pytest.raises(shmtree.CorruptMessage, match="too many times"):
        shmtree.unpack(frame, copy=True)
    peak, _ = cost_of(lambda: shmtree.unpack(frame, copy=True))
    assert peak < 16 * MIB


# --- classes by name --------------------------------------------------------------------------------------------------


Wide = dataclasses.make_dataclass("Wide", [f"f{i}" for i in range(70)])
Wide.__module__ = __name__


@pytest.mark.parametrize("repeated", [0, 69])
def test_dataclass_with_a_repeated_field_is_corrupt(repeated: int) -> None:
    value = Wide(*range(70))
    assert shmtree.unpack(shmtree.pack(value, allow_pickle=False)) == value
    names = [f"f{i}" for i in range(70)]
    names[35] = names[repeated]
    writer = Writer().kind(fw.DATACLASS).name(f"{__name__}:Wide").length(70)
    for name in names:
        writer.name(name).value(1)
    with pytest.raises(shmtree.CorruptMessage, match="twice"):
        shmtree.unpack(writer.frame())


@pytest.mark.guarantee("bounded-values")
def test_class_lookup_does_not_execute_a_lazy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_of_test.py").write_text("import sys\nsys.ran_lazy_of_test = True\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("lazy_of_test")
    assert spec is not None and spec.loader is not None
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_of_test", module)
    loader.exec_module(module)
    frame = Writer().kind(fw.ENUM_VALUE).name("lazy_of_test:Thing").value(1).frame()
    with pytest.raises((shmtree.PickleRefused, shmtree.CorruptMessage)):
        shmtree.unpack(frame)
    assert not hasattr(sys, "ran_lazy_of_test")


@pytest.mark.parametrize("fields", [[1], 5, "abc", (1,), None, ({},), range(1 << 40)])
def test_fake_attrs_class_is_not_treated_as_attrs(fields: Any) -> None:
    odd = type("Odd", (), {"__attrs_attrs__": fields})
    with pytest.raises(shmtree.PickleRefused):
        shmtree.pack(odd(), allow_pickle=False)


@pytest.mark.parametrize("fields", [5, {"a": 1}, "abc"])
def test_fake_dataclass_is_not_treated_as_a_dataclass(fields: Any) -> None:
    odd = type("Odd", (), {"__dataclass_fields__": fields})
    with pytest.raises((shmtree.PickleRefused, AttributeError, TypeError)):
        shmtree.pack(odd(), allow_pickle=False)


# --- stacks -----------------------------------------------------------------------------------------------------------


def in_thread(stack: int, act: Callable[[], object]) -> str:
    """Runs `act` in a thread with that stack size. Returns the name of its exception, or "" if it returned."""
    raised: list[str] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(type(error).__name__)

    before = threading.stack_size(stack)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return "".join(raised)


def deep(kind: int, levels: int) -> bytes:
    writer = Writer()
    for _ in range(levels):
        writer.kind(kind).length(1)
        if kind == fw.DEQUE:
            writer.length(0)
    return writer.value(None).frame()


@pytest.mark.parametrize("kind", [fw.LIST, fw.TUPLE, fw.DEQUE])
@pytest.mark.parametrize("stack", [64 << 10, 128 << 10, 256 << 10, 1 << 20])
def test_deep_frame_is_read_or_refused_on_a_small_stack(kind: int, stack: int, tmp_path: Path) -> None:
    frame = deep(kind, 998)
    with open(tmp_path / "out", "w") as file:
        for act in (lambda: shmtree.unpack(frame), lambda: shmtree.describe(frame, file=file)):
            assert in_thread(stack, act) in ("", "OutOfSharedMemory")


@pytest.mark.parametrize("stack", [64 << 10, 256 << 10])
def test_deep_object_is_sent_or_refused_on_a_small_stack(stack: int) -> None:
    value: Any = []
    for _ in range(900):
        value = [value]
    assert in_thread(stack, lambda: shmtree.pack(value, allow_pickle=False)) in ("", "MemoryError")


def test_flat_frame_is_read_on_a_small_stack() -> None:
    frame = bytes(shmtree.pack({"a": [1, (2, "three")], "b": np.arange(3)}))
    assert in_thread(64 << 10, lambda: shmtree.unpack(frame)) == ""


# --- terminals --------------------------------------------------------------------------------------------------------


CONTROLS = {
    "c0": "\x1b[31m",
    "c1": "\x9b31m",
    "del": "\x7f",
    "lines": "a\u2028b\u2029c\x85",
    "bidi": "\u202e\u2066\u061c\u200f",
}


def has_controls(text: str) -> bool:
    return any(not each.isprintable() for each in text.replace("\n", ""))


@pytest.mark.parametrize("text", CONTROLS.values(), ids=CONTROLS)
def test_describe_escapes_control_characters(text: str) -> None:
    out = io.StringIO()
    for value in (
        text,
        {text: 1},
        {(text,): text},
        [{text: {text: [text]}}],
        datetime.timezone(datetime.timedelta(0), text),
    ):
        shmtree.describe(shmtree.pack(value), file=out)
    shmtree.describe(Writer().kind(fw.ENUM_VALUE).name(text).value(1).frame(), file=out)
    assert not has_controls(out.getvalue()) and ascii(text[0])[1:-1] in out.getvalue()


def test_describe_keeps_texts_of_all_scripts() -> None:
    out = io.StringIO()
    shmtree.describe(shmtree.pack(["Ärger", "日本語", "עברית", "🙂"]), file=out)
    assert all(text in out.getvalue() for text in ("Ärger", "日本語", "עברית", "🙂"))


@pytest.mark.parametrize("text", CONTROLS.values(), ids=CONTROLS)
def test_errors_escape_names_from_a_message(text: str) -> None:
    inner = Writer().kind(fw.DICT + 1).length(1).name(text).kind(fw.ENUM_VALUE).name(f"{text}:{text}").value(1).frame()
    with pytest.raises(shmtree.PickleRefused) as refused:
        shmtree.unpack(inner)
    assert not has_controls(str(refused.value))


@pytest.mark.parametrize("dtype", [b"|S0", b"<U0"])
def test_array_of_texts_without_width_is_corrupt(dtype: bytes) -> None:
    """NumPy would make an array with one character per element, from uninitialized memory."""
    frame = bytes(shmtree.pack(np.zeros(20, "V0")))
    assert frame.count(b"|V0") == 1
    with pytest.raises(shmtree.CorruptMessage, match="elements of width 0"):
        shmtree.unpack(frame.replace(b"|V0", dtype))


def test_masked_array_of_elements_without_width_is_corrupt() -> None:
    """NumPy would make a mask with one byte per element, which the frame does not contain."""
    frame = bytes(shmtree.pack(np.ma.array(np.zeros(3, "V0")), allow_pickle=False))
    with pytest.raises(shmtree.CorruptMessage, match="elements of 0 bytes"):
        shmtree.unpack(frame)


UNSOUND_DTYPES = {
    "syntax": (b"'aaaa'", b"'\x1b[3m("),
    "format": (b"'<i4'", b"'\x1b[3'"),
    "escape": (b"'aaaa'", b"'\\\x1b[3'"),
}


@pytest.mark.parametrize("unsound", UNSOUND_DTYPES.values(), ids=UNSOUND_DTYPES)
def test_traceback_of_a_corrupt_dtype_escapes_controls(unsound: tuple[bytes, bytes]) -> None:
    frame = bytes(shmtree.pack(np.zeros(1, [("aaaa", "<i4")])))
    assert frame.count(unsound[0]) == 1
    with pytest.raises(shmtree.CorruptMessage) as corrupt:
        shmtree.unpack(frame.replace(*unsound))
    assert not has_controls("".join(traceback.format_exception(corrupt.value)))


# --- interpreters -----------------------------------------------------------------------------------------------------


def test_subinterpreter_import_raises_import_error() -> None:
    program = (
        "try:\n    import _interpreters as I\nexcept ImportError:\n    import _xxsubinterpreters as I\n"
        "made = I.create()\n"
        "code = 'try:\\n    import shmtree\\nexcept ImportError as error:\\n    print(error)'\n"
        "I.run_string(made, code)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout and done.returncode == 0, done.stdout + done.stderr
