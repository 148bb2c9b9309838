"""Messages that a subscriber could not build: its next call returns them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import shmtree

raising: list[BaseException] = []
FAILED_BUILDS = 8  # failures in a row after which a reader skips the message


class Raises:
    """Unpickling an instance raises the last error of `raising`, while there is one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, ()


def _raise() -> str:
    if raising:
        raise raising[-1]
    return "built"


class Signals:
    """Loading an instance sends SIGUSR1 to this process, without running Python code."""


shmtree.register(Signals, lambda _: int(signal.SIGUSR1), ctypes.CDLL(None)["raise"])

READING: dict[str, Callable[[Any], Any]] = {
    "get": lambda reader: reader.get(timeout=60),
    "get_nowait": lambda reader: reader.get_nowait(),
    "get_many": lambda reader: reader.get_many(1, timeout=60)[0],
    "next": lambda reader: next(iter(reader)),
    "get_async": lambda reader: asyncio.run(reader.get_async(timeout=60)),
}


@pytest.fixture(autouse=True)
def _builds() -> Iterator[None]:
    yield
    raising.clear()


@pytest.fixture(params=["block", "skip", "raise", "latest"])
def ends(request: Any, arena: shmtree.Arena) -> Iterator[tuple[Any, Any]]:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe(on_lag=request.param) as reader:
        yield broadcast, reader


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.parametrize("value", [Raises(), [Raises(), np.arange(100_000)]], ids=["small", "large"])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", READING)
def test_message_that_cannot_be_built_stays_the_next(ends: Any, call: str, error: BaseException, value: Any) -> None:
    broadcast, reader = ends
    broadcast.put(value)
    raising.append(error)
    for _ in range(3):
        with pytest.raises(type(error)):
            READING[call](reader)
        assert reader.qsize() == 1 and not reader.empty() and reader.missed == 0
        assert shmtree.wait([reader], 0) == [reader]
    raising.clear()
    built = READING[call](reader)
    assert built == "built" if isinstance(value, Raises) else built[0] == "built" and built[1][-1] == 99_999
    with pytest.raises(queue.Empty):
        reader.get_nowait()
    assert reader.missed == 0


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.parametrize("error", [MemoryError(), SystemExit()], ids=lambda error: type(error).__name__)
def test_message_counts_as_missed_after_eight_failed_builds(arena: shmtree.Arena, error: BaseException) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe() as reader:
        broadcast.put(Raises())
        broadcast.put("next")
        raising.append(error)
        for _ in range(FAILED_BUILDS):
            assert reader.missed == 0
            with pytest.raises(type(error)):
                reader.get(timeout=60)
        assert reader.missed == 1 and reader.qsize() == 1
        assert reader.get(timeout=60) == "next"


def test_abandoned_message_raises_overrun_if_on_lag_is_raise(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe(on_lag="raise") as reader:
        broadcast.put(Raises())
        raising.append(MemoryError())
        for _ in range(FAILED_BUILDS):
            with pytest.raises(MemoryError):
                reader.get(timeout=60)
        with pytest.raises(shmtree.Overrun, match="or skipped, before this subscriber read them") as overrun:
            reader.get(timeout=60)
        assert overrun.value.missed == 1


def test_keyboard_interrupts_do_not_abandon_a_message(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe() as reader:
        broadcast.put(Raises())
        raising.append(KeyboardInterrupt())
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                reader.get(timeout=60)
        raising.clear()
        assert reader.get(timeout=60) == "built" and reader.missed == 0


def test_message_overwritten_after_a_failed_build_is_still_next(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(2, arena=arena) as broadcast, broadcast.subscribe(on_lag="skip") as reader:
        broadcast.put([Raises(), np.arange(10_000)])
        raising.append(MemoryError())
        with pytest.raises(MemoryError):
            reader.get(timeout=60)
        raising.clear()
        for number in range(10):
            broadcast.put(number)
        assert reader.get(timeout=60)[1][-1] == 9_999
        assert list(reader.get_many(5, timeout=60)) == [8, 9] and reader.missed == 8


def test_latest_only_subscriber_skips_a_failed_message(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe(on_lag="latest") as reader:
        broadcast.put(Raises())
        raising.append(MemoryError())
        with pytest.raises(MemoryError):
            reader.get(timeout=60)
        broadcast.put("newer")
        assert reader.qsize() == 1
        assert reader.get(timeout=60) == "newer" and reader.missed == 1


def test_put_does_not_wait_for_a_message_that_fails_to_build(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(1, arena=arena) as broadcast, broadcast.subscribe() as reader:
        broadcast.put(Raises())
        raising.append(MemoryError())
        with pytest.raises(MemoryError):
            reader.get(timeout=60)
        broadcast.wait_for_all_ack(timeout=60)
        broadcast.put("next", timeout=60)
        raising.clear()
        assert reader.get_many(5, timeout=60) == ["built", "next"]


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), RuntimeError()], ids=lambda e: type(e).__name__)
def test_get_many_returns_messages_before_an_error(arena: shmtree.Arena, error: BaseException) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe() as reader:
        for value in ("first", Raises(), "last"):
            broadcast.put(value)
        raising.append(error)
        assert reader.get_many(5, timeout=60) == ["first"]
        with pytest.raises(type(error)):
            reader.get_many(5, timeout=60)
        raising.clear()
        is_consumed = isinstance(error, RuntimeError)
        assert reader.get_many(5, timeout=60) == ["last"] if is_consumed else ["built", "last"]
        assert reader.missed == 0


@pytest.mark.usefixtures("no_collector_callbacks")
def test_message_stays_if_a_signal_handler_raises(arena: shmtree.Arena) -> None:
    class Alarm(Exception):
        """The exception that the signal handler raises."""

    def raises(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, raises)
    try:
        with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe() as reader:
            broadcast.put([Signals(), [[number] for number in range(50_000)]])
            for _ in range(10):
                with pytest.raises(Alarm):
                    reader.get(timeout=60)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            assert len(reader.get(timeout=60)[1]) == 50_000
            assert reader.missed == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


class Undecided:
    """An object that raises an exception if its truth value is asked for."""

    def __bool__(self) -> bool:
        raise ValueError("undecided")


def test_invalid_copy_argument_consumes_no_message(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(4, arena=arena) as broadcast, broadcast.subscribe() as reader:
        broadcast.put("kept")
        for call in (reader.get, lambda copy: reader.get_many(2, copy=copy)):
            with pytest.raises(ValueError, match="undecided"):
                call(copy=Undecided())
        assert reader.get(timeout=60) == "kept"


def test_failed_message_holds_its_memory_until_close(arena: shmtree.Arena) -> None:
    with shmtree.Broadcast(1, arena=arena) as broadcast:
        reader = broadcast.subscribe(on_lag="skip")
        used = arena.stats()["used_bytes"]
        broadcast.put([Raises(), np.zeros(1 << 20)])
        raising.append(MemoryError())
        with pytest.raises(MemoryError):
            reader.get(timeout=60)
        broadcast.put("next")
        assert arena.stats()["used_bytes"] > used + (1 << 20)
        reader.close()
        assert arena.stats()["used_bytes"] <= used
        with pytest.raises(shmtree.ChannelClosed):
            reader.get(timeout=60)


def test_threads_with_memory_errors_get_every_message_once(arena: shmtree.Arena) -> None:
    numbers = 400
    got: list[int] = []
    with shmtree.Broadcast(16, arena=arena) as broadcast, broadcast.subscribe() as reader:

        def read() -> None:
            while len(got) < numbers:
                try:
                    got.append(reader.get(timeout=0.2))
                except (queue.Empty, MemoryError):
                    continue

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(numbers):
            broadcast.put(Sometimes(number), timeout=60)
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(numbers)) and reader.missed == 0


class Sometimes:
    """Loading an instance raises MemoryError the first two times."""

    tries: ClassVar[dict[int, int]] = {}

    def __init__(self, number: int) -> None:
        self.number = number


def load_sometimes(number: int) -> int:
    Sometimes.tries[number] = Sometimes.tries.get(number, 0) + 1
    if Sometimes.tries[number] < 3:
        raise MemoryError
    return number


shmtree.register(Sometimes, lambda sometimes: sometimes.number, load_sometimes)


@pytest.mark.parametrize("error", [queue.Empty, shmtree.ChannelClosed, KeyError])
def test_next_get_many_raises_the_error_of_a_later_message(error: type[Exception]) -> None:
    broadcast = shmtree.Broadcast()
    subscriber = broadcast.subscribe()
    broadcast.put_many([1, Raises(), 3])
    raising.append(error("of the message"))
    try:
        assert subscriber.get_many(5) == [1]
    finally:
        raising.clear()
    with pytest.raises(error, match="of the message"):
        subscriber.get_many(5)
    assert subscriber.get_many(5) == [3]


def test_kept_error_keeps_no_subscription_alive() -> None:
    broadcast = shmtree.Broadcast()

    def read() -> None:
        subscriber = broadcast.subscribe()
        broadcast.put_many([1, Raises()])
        raising.append(ValueError())
        try:
            raise KeyError  # its traceback has this frame, and so the subscriber
        except KeyError:
            assert subscriber.get_many(5) == [1]
        finally:
            raising.clear()

    read()
    gc.collect()
    assert broadcast.stats()["subscribers"] == 0


def test_put_many_of_a_closed_broadcast_takes_no_item() -> None:
    broadcast = shmtree.Broadcast()
    broadcast.close()
    items = iter([1, 2])
    with pytest.raises(shmtree.ChannelClosed):
        broadcast.put_many(items)
    assert list(items) == [1, 2]
