"""CUDA events and handles are used again, but never while a message or a stream still needs them."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from cuda_processes import ON_THE_FAKE, Log, Process, Spawn

import shmtree
from shmtree.cuda import _events

VALUES = np.arange(24, dtype="float32").reshape(4, 6)


def lines(log: list[str], word: str) -> list[list[str]]:
    return [line.split()[1:] for line in log if line.startswith(word + " ")]


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(spawn: Spawn, arena: shmtree.Arena) -> tuple[Process, Process]:
    sender, receiver = arena.create_pair(allow_pickle=False)
    return spawn(sender), spawn(receiver)


@ON_THE_FAKE
def test_released_event_is_recorded_again(two: tuple[Process, Process], driver_log: Log) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    for _ in range(3):
        receiver.ask("get")
        receiver.ask("drop")
        sender.ask("wait")
        sender.ask("put_again")
    receiver.ask("get")

    recorded = lines(driver_log(sender), "record")
    assert len(recorded) == 4 and len({event for event, *_ in recorded}) == 1
    assert len(lines(driver_log(sender), "export")) == 1
    assert len(lines(driver_log(receiver), "import")) == 1
    assert [line[-1] for line in lines(driver_log(receiver), "wait")] == [recorded[0][0]] * 4


@ON_THE_FAKE
def test_event_of_unreleased_memory_is_not_recorded(two: tuple[Process, Process], driver_log: Log) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")  # keeps the first message
    sender.ask("put_again")
    sender.ask("put_again")  # the second one is in the channel
    recorded = [event for event, *_ in lines(driver_log(sender), "record")]
    assert len(set(recorded)) == 3


@ON_THE_FAKE
def test_event_of_a_killed_receiver_is_recorded_again(spawn: Spawn, arena: shmtree.Arena, driver_log: Log) -> None:
    end, receiver = arena.create_pair()
    first, second = spawn(shmtree.Receiver._of(receiver._channel)), spawn(receiver)
    sender = spawn(end)
    sender.ask("put", VALUES)
    first.ask("get")
    first.kill()
    sender.ask("wait")
    sender.ask("put_again")
    assert np.array_equal(second.ask("get")[1], VALUES)
    assert len({event for event, *_ in lines(driver_log(sender), "record")}) == 1


@ON_THE_FAKE
def test_receiver_closes_events_of_a_killed_sender(spawn: Spawn, arena: shmtree.Arena, driver_log: Log) -> None:
    end, other = arena.create_pair()
    first, second = spawn(shmtree.Sender._of(end._channel)), spawn(end)
    receiver = spawn(other)
    first.ask("put", VALUES)
    receiver.ask("get")
    receiver.ask("drop")
    first.kill()
    second.ask("put", VALUES + 1)
    assert np.array_equal(receiver.ask("get")[1], VALUES + 1)
    log = driver_log(receiver)
    assert lines(log, "destroy") == lines(log, "import")[:1] and len(lines(log, "import")) == 2


# --- parts ------------------------------------------------------------------------------------------------------------


class Driver:
    """A driver that only records the events of its calls."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.pending: set[int] = set()
        self.failing: set[int] = set()
        self.opened: list[bytes] = []
        self.waits: list[tuple[int, int]] = []
        self.destroyed: list[int] = []

    def create_event(self, is_shared: bool) -> int:
        return next(self.numbers)

    def event_handle(self, number: int) -> bytes:
        return b"%d" % number

    def record(self, number: int, stream: int) -> None:
        pass

    def has_passed(self, number: int) -> bool:
        if number in self.failing:
            raise shmtree.DeviceError("said by the test")
        return number not in self.pending

    def open_event(self, handle: bytes) -> int:
        self.opened.append(handle)
        return next(self.numbers)

    def wait_in_stream(self, stream: int, number: int) -> None:
        self.waits.append((stream, number))

    def destroy_event(self, number: int) -> None:
        self.destroyed.append(number)

    def on(self, device: int) -> Any:
        return contextlib.nullcontext()


@pytest.fixture
def driver() -> Any:
    return Driver()


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Senders that have died; tests add to it."""
    found: set[Any] = set()
    monkeypatch.setattr(_events, "_is_alive", lambda sender: sender not in found)
    return found


def test_pool_reuses_events_on_their_own_device(driver: Any) -> None:
    pool = _events.Pool(is_shared=True)
    event = pool.record(driver, 0, 5)
    assert event == (1, b"1")
    pool.put_back(0, event)
    assert pool.record(driver, 1, 5).number == 2
    assert pool.record(driver, 0, 5) is event


def test_pool_does_not_reuse_a_pending_event(driver: Any) -> None:
    pool = _events.Pool(is_shared=True)
    event = pool.record(driver, 0, 5)
    pool.put_back(0, event)
    driver.pending.add(event.number)
    assert pool.record(driver, 0, 5).number != event.number
    driver.pending.clear()
    assert pool.record(driver, 0, 5) is event


def test_pool_drops_an_event_that_the_driver_rejects(driver: Any) -> None:
    pool = _events.Pool(is_shared=True)
    event = pool.record(driver, 0, 5)
    pool.put_back(0, event)
    driver.failing.add(event.number)
    assert pool.record(driver, 0, 5).number == 2
    driver.failing.clear()
    assert pool.record(driver, 0, 5).number == 3 and driver.destroyed == []


def test_event_is_opened_once_for_each_sender(driver: Any, dead: set[Any]) -> None:
    opened = _events.Opened()
    for sender in ((b"u", 1), (b"u", 2), (b"u", 1)):
        opened.wait(driver, 0, sender, b"h", (5,))
    assert driver.opened == [b"h", b"h"] and driver.waits == [(5, 1), (5, 2), (5, 1)]


def test_events_of_dead_senders_are_closed(driver: Any, dead: set[Any]) -> None:
    opened = _events.Opened()
    opened.wait(driver, 0, (b"u", 1), b"h", (5,))
    opened.wait(driver, 0, (b"u", 2), b"h", (5,))
    dead.add((b"u", 1))
    opened.wait(driver, 0, (b"u", 2), b"i", (5,))
    assert driver.destroyed == [1]


def test_number_of_opened_events_is_bounded(driver: Any, dead: set[Any]) -> None:
    opened = _events.Opened()
    for number in range(_events._MAX_OPENED):
        opened.wait(driver, 0, (b"u", 1), b"%d" % number, (5,))
    opened.wait(driver, 0, (b"u", 1), b"0", (5,))  # the oldest one is now the most recently used
    opened.wait(driver, 0, (b"u", 1), b"new", (5,))
    assert driver.destroyed == [2]
