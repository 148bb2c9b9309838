"""Many threads of one process use ends, queues, and the caches behind them at the same time.

With a GIL, the interpreter switches threads as often as it can. Without one, they run in parallel anyway.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from exact import assert_same

import shmtree

THREADS = 6
ROUNDS = 60


@pytest.fixture(autouse=True)
def changing_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """Runs work(0) to work(count - 1) in threads that start at the same time.

    Raises the error of one, if any failed.
    """
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Step:
    action: int
    reward: float = 0.0


class Registered:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registered) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def sample(number: int) -> dict[str, Any]:
    """Returns a value of nearly every kind, with keys and dtypes that are unique to this number."""
    return {
        f"key {number}": number,
        "list": [number, [1.5, 2.5, 3.5, 4.5], "text", b"bytes", bytearray(b"array")],
        "kinds": (Colour.GREEN, Point(number, 0.5), Step(number), {1, 2}, frozenset("ab"), range(number)),
        "order": OrderedDict(b=1, a=2),
        "more": [defaultdict(list, x=[number]), Counter("abb"), deque([1], 3), decimal.Decimal("1.5")],
        "rest": [Fraction(1, 3), UUID(int=number), PurePosixPath("/a"), datetime.date(2020, 1, 2)],
        "when": datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
        "large": np.full(3_000, number),
        "record": np.zeros(2, [(f"field {number}", "i4"), ("x", ">f8")]),
        "dates": np.arange(3).astype("M8[s]"),
    }


def test_threads_encode_and_decode_at_once() -> None:
    def work(number: int) -> None:
        for turn in range(ROUNDS):
            value = sample(number * ROUNDS + turn)
            frame = shmtree.pack(value, allow_pickle=False)
            assert_same(shmtree.unpack(frame), value)

    at_once(work)


def test_threads_pickle_at_once() -> None:
    def work(number: int) -> None:
        twice = [number]
        for _ in range(ROUNDS):
            got = shmtree.unpack(shmtree.pack([twice, twice, np.full(2_000, number)]), allow_pickle=True)
            assert got[0] is got[1] == twice
            assert (got[2] == number).all()

    at_once(work)


@pytest.mark.parametrize("kind", ["pair", "queue"])
def test_threads_share_the_ends_of_one_channel(kind: str, arena: shmtree.Arena) -> None:
    ends: tuple[Any, Any] = arena.create_pair(capacity=4) if kind == "pair" else (arena.Queue(4),) * 2
    sender, receiver = ends
    seen: list[list[tuple[int, int]]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        if number % 2:
            for turn in range(ROUNDS):
                sender.put({"from": (number, turn), "x": np.full(turn * 40, turn, np.int32)})
        else:
            for _ in range(ROUNDS):
                item = receiver.get()
                assert (item["x"] == item["from"][1]).all()
                seen[number].append(item["from"])

    at_once(work)

    everything = [each for one in seen for each in one]
    assert sorted(everything) == [(number, turn) for number in range(1, THREADS, 2) for turn in range(ROUNDS)]
    for one in seen:
        for number in range(1, THREADS, 2):
            turns = [turn for sent_by, turn in one if sent_by == number]
            assert turns == sorted(turns)


def test_delivery_is_acked_by_one_of_three_threads(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=None)
    for _ in range(ROUNDS):
        sender.put("taken")
        delivery = receiver.take()
        settled: list[int] = []

        def settle(number: int, delivery: shmtree.Delivery = delivery, settled: list[int] = settled) -> None:
            try:
                delivery.ack()
                settled.append(number)
            except ValueError:
                pass

        at_once(settle, 3)
        assert len(settled) == 1
    sender.wait_for_all_ack(timeout=60)


def test_array_put_by_two_threads_is_moved_once(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=None)
    for turn in range(ROUNDS):
        array = sender.new_empty((64, 64), np.int64)
        array[:] = turn
        at_once(lambda _, array=array: sender.put(array), 2)
        first, second = receiver.get(), receiver.get()
        first[:] = -1
        assert (second == turn).all()


def test_object_changed_during_pack_raises_or_arrives_whole() -> None:
    shared: dict[str, Any] = {f"key {number}": [number] * 10 for number in range(20)}
    numbers = list(range(50))
    text = bytearray(b"x" * 50)
    over = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for turn in range(ROUNDS * 20):
                shared[f"new {turn}"] = [turn]
                shared.pop(f"new {turn - 3}", None)
                numbers.append(turn)
                del numbers[0]
                text.extend(b"more")
                del text[:4]
            over.set()
        while not over.is_set():
            try:
                got = shmtree.unpack(shmtree.pack([shared, numbers, text], allow_pickle=False))
            except RuntimeError as error:
                assert "changed" in str(error)
                continue
            assert all(type(value) is list for value in got[0].values())
            assert all(type(value) is int for value in got[1])

    at_once(work, 4)


def test_threads_encode_new_classes_at_once() -> None:
    for turn in range(ROUNDS // 3):
        made = dataclasses.make_dataclass(f"Made{turn}", ["value"])
        made.__module__ = __name__
        globals()[made.__name__] = made
        registered = type(f"Registered{turn}", (Registered,), {})

        def work(number: int, made: Any = made, registered: Any = registered) -> None:
            if number % 2:
                shmtree.register(registered, lambda each: each.value, registered)
            assert shmtree.unpack(shmtree.pack(made(number), allow_pickle=True), allow_pickle=True) == made(number)
            if number % 2:
                assert shmtree.unpack(shmtree.pack(registered(number), allow_pickle=False)) == registered(number)

        at_once(work, 4)
        del globals()[made.__name__]
