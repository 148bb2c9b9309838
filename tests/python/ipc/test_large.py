"""Messages of gigabytes, which need a machine with enough memory."""

import collections
import contextlib
import datetime
import hashlib
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import shmtree
import shmtree.compat.memory
import shmtree.compat.py_sharedmemory

pytestmark = [pytest.mark.serial, pytest.mark.timeout(1200)]
GIB = 1 << 30


def available() -> int:
    """Returns the free bytes of the machine and its control groups. By default an arena may take half of them."""
    with shmtree.Arena() as half:
        return 2 * half.max_bytes


def needs(size_bytes: int) -> None:
    if available() < size_bytes:
        pytest.skip(f"needs {size_bytes >> 30} GiB of memory, {available() >> 30} are available")


@pytest.fixture
def arena() -> Iterator[shmtree.Arena]:
    with shmtree.Arena(max_bytes=11 * GIB) as made:
        yield made


def every_type() -> dict[str, Any]:
    return {
        "text": "naïve",
        "number": 7,
        "big": 1 << 90,
        "float": 0.5,
        "complex": 1 + 2j,
        "flags": (True, False, None),
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"abc"),
        "list": [1, [2, [3]]],
        "set": {1},
        "frozen": frozenset("a"),
        "ordered": collections.OrderedDict(a=1),
        "when": datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
        "scalar": np.float32(1.25),
        3: {"nested": np.arange(6, dtype=np.int16).reshape(2, 3)},
    }


def describe_large(sample: dict[Any, Any]) -> tuple[Any, ...]:
    array = sample.pop("array")
    digest = hashlib.blake2b(array.reshape(-1)[:: 1 << 12].tobytes()).hexdigest()
    rest = {key: (type(value).__name__, repr(value)) for key, value in sample.items()}
    return type(array).__name__, array.dtype.str, array.shape, float(array.reshape(-1)[-1]), digest, rest


def answer(receiver: shmtree.Receiver, sender: shmtree.Sender) -> None:
    sample = receiver.get(timeout=300)
    sender.put((describe_large(dict(sample)), sample), timeout=300, move=True)
    sender.wait_for_all_ack(timeout=300)


def test_nested_dict_with_an_array_of_1_7_gb_round_trips(arena: shmtree.Arena) -> None:
    needs(9 * GIB)
    context = multiprocessing.get_context("spawn")
    there, their_receiver = arena.create_pair(capacity=2)
    their_sender, back = arena.create_pair(capacity=2)
    sample: dict[Any, Any] = every_type()
    sample["array"] = np.empty((64, 80, 4, 84, 84, 3), dtype=np.float32)
    sample["array"].reshape(-1)[:] = np.arange(sample["array"].size, dtype=np.float32)
    child = context.Process(target=answer, args=(their_receiver, their_sender))
    child.start()
    there.put(sample, timeout=300)
    described, returned = back.get(timeout=300)
    child.join(300)

    assert child.exitcode == 0
    np.testing.assert_array_equal(returned["array"][::16], sample["array"][::16])
    assert returned["array"].dtype == np.float32
    assert list(returned) == list(sample)
    assert {k: type(v) for k, v in returned.items()} == {k: type(v) for k, v in sample.items()}
    assert described == describe_large(dict(sample))


@pytest.mark.guarantee("any-size")
def test_pair_with_only_a_capacity_carries_10_bytes_then_2_gb() -> None:
    needs(7 * GIB)
    sender, receiver = shmtree.create_pair(capacity=5)
    sender.put(b"0123456789")
    assert receiver.get(timeout=60) == b"0123456789"
    large = np.full(2 * GIB, 7, dtype=np.uint8)
    sender.put(large, timeout=300)
    del large
    received = receiver.get(timeout=300)
    assert received.nbytes == 2 * GIB
    assert received[:: 1 << 20].sum() == 7 * (2 * GIB >> 20)
    assert received[-1] == 7


class Reading(NamedTuple):
    """One sensor reading."""

    sensor: str
    value: int


def readings(shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns all types that the description of py-sharedmemory lists, nested in each other, and one large array."""
    chance = np.random.default_rng(5)
    cameras = [
        {"number": i, "image": chance.random((32, 32, 3), np.float32), "at": ("north", i, 0.5), "on": [True, False]}
        for i in range(2)
    ]
    return {
        "run": 98765,
        "note": "every type in every other",
        "done": False,
        "terms": {"rate": 0.001, "batch": 128, "kind": "adam", "key": b"\x01\x02\x03"},
        "cameras": cameras,
        "mixed": [1, "two", 3.0, b"four", (5, "six", True), {"list": [7, {"deep": 8}]}, np.array([1.1, 2.2])],
        "numbers": {101, 202},
        "states": {b"ok", b"failed"},
        "dtypes": [np.dtype("float32"), np.dtype("int64"), np.dtype("bool")],
        "nested": {"list": ["a", {"b": {"array": np.arange(5)}}, Reading("c", 99)], "set": {9, "d"}},
        "empty": {"list": [], "dict": {}, "set": set(), "tuple": (), "text": "", "bytes": b""},
        "large": chance.random(shape, np.float32),
    }


def assert_like(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_like(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_like(one, other)
    else:
        assert found == expected


def send_back(receiver: Any, sender: Any) -> None:
    sender.put(receiver.get(timeout=600), timeout=600)
    sender.wait_for_all_ack(timeout=600)


@contextlib.contextmanager
def answering(module: Any, answer: Callable[[Any, Any], None]) -> Iterator[tuple[Any, Any]]:
    """Runs `answer(receiver, sender)` in a new process. Yields the ends of this process."""
    context = multiprocessing.get_context("spawn")
    there, their_receiver = module.create_shared_memory_pair(capacity=5, ctx=context)
    their_sender, back = module.create_shared_memory_pair(capacity=5, ctx=context)
    child = context.Process(target=answer, args=(their_receiver, their_sender))
    child.start()
    yield there, back
    child.join(600)
    assert child.exitcode == 0


MODULES = [shmtree.compat.memory, shmtree.compat.py_sharedmemory]


@pytest.mark.parametrize(
    ("module", "shape", "gib"),
    [*[(module, (4, 4, 2), 0) for module in MODULES], (MODULES[0], (64, 80, 4, 84, 84, 3), 14)],
)
def test_largest_py_sharedmemory_example_round_trips(module: Any, shape: Any, gib: int) -> None:
    needs(gib * GIB)
    sent = readings(shape)
    with answering(module, send_back) as (there, back):
        there.put(sent, timeout=600)
        assert_like(back.get(timeout=600), sent)


def describe_bytes(receiver: Any, sender: Any) -> None:
    got = receiver.get(timeout=600)
    sender.put((type(got).__name__, len(got), got[:3], got[-3:], got[:: 1 << 20].count(b"x")))
    sender.wait_for_all_ack(timeout=600)


@pytest.mark.parametrize(
    ("module", "size", "gib"),
    [*[(module, 10_000_000, 0) for module in MODULES], (MODULES[0], 10_000_000_000, 32)],
)
def test_10_gb_of_bytes_reach_another_process(module: Any, size: int, gib: int) -> None:
    needs(gib * GIB)
    with answering(module, describe_bytes) as (there, back):
        there.put(b"abc" + b"x" * (size - 6) + b"xyz", timeout=600)
        found = back.get(timeout=600)
    assert found == ("bytes", size, b"abc", b"xyz", -(-size >> 20) - 1)


def test_get_and_put_of_a_gigabyte_copy_nothing(arena: shmtree.Arena) -> None:
    needs(3 * GIB)
    first, middle = arena.create_pair()
    second, last = arena.create_pair()
    array = first.new_empty((GIB // 4,), np.float32)
    address = array.ctypes.data
    array[0], array[-1] = 1.0, 2.0
    first.put({"array": array})
    passing = middle.get(timeout=60)
    assert passing["array"].ctypes.data == address
    second.put(passing, move=True)
    received = last.get(timeout=60)
    assert received["array"].ctypes.data == address
    assert (received["array"][0], received["array"][-1]) == (1.0, 2.0)
    assert arena.stats()["used_bytes"] < GIB + (16 << 20)
