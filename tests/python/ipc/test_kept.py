"""Messages that a process has no memory, addresses or time for stay available to the next receiver."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared_state import violated
from test_limits import MIB, UNDER_SANITIZER, run_program

import shmtree

raising: BaseException | None = None


class Raises:
    """Unpickling an instance raises `raising`, if it is set."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, ()


def _raise() -> str:
    if raising is not None:
        raise raising
    return "received"


RECEIVING: dict[str, Callable[[Any], Any]] = {
    "get": lambda receiver: receiver.get(timeout=60),
    "get_nowait": lambda receiver: receiver.get_nowait(),
    "get_many": lambda receiver: receiver.get_many(3, timeout=60)[0],
    "next": lambda receiver: next(iter(receiver)),
    "get_async": lambda receiver: asyncio.run(receiver.get_async(timeout=60)),
    "take": lambda receiver: taken(receiver),
}


def taken(receiver: Any) -> Any:
    with receiver.take(timeout=60) as delivery:
        return delivery.item


def ends(arena: shmtree.Arena, kind: str) -> tuple[Any, Any]:
    if kind == "pair":
        return arena.create_pair()
    queue = shmtree.Queue(arena=arena)
    return queue, queue


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | None], None]:
    return lambda error: monkeypatch.setitem(globals(), "raising", error)


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", RECEIVING)
@pytest.mark.parametrize("kind", ["pair", "queue"])
def test_memory_error_or_interrupt_does_not_consume_the_message(
    arena: shmtree.Arena, fails: Any, kind: str, call: str, error: BaseException
) -> None:
    sender, receiver = ends(arena, kind)
    if kind == "queue" and call == "take":
        pytest.skip("a queue has no take()")
    sender.put(Raises())
    sender.put("next")
    fails(error)
    for _ in range(3):
        with pytest.raises(type(error)):
            RECEIVING[call](receiver)
        assert receiver.qsize() == 2
        assert shmtree.wait([receiver], 0) == [receiver]
    fails(None)
    assert RECEIVING[call](receiver) == "received"
    assert receiver.qsize() + (call == "get_many") == 1


class Ends(BaseException):
    """Not a subclass of Exception, like SystemExit."""


@pytest.mark.guarantee("poison-message")
@pytest.mark.parametrize("error", [SystemExit("ends"), GeneratorExit(), Ends()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["get", "take", "get_many"])
def test_message_is_dead_lettered_after_eight_system_exits(
    arena: shmtree.Arena, fails: Any, call: str, error: BaseException
) -> None:
    sender, receiver = arena.create_pair()
    sender.put(Raises())
    sender.put("next")
    fails(error)
    for _ in range(8):
        with pytest.raises(type(error)):
            RECEIVING[call](receiver)
    assert receiver.get(timeout=60) == "next"
    fails(None)
    assert [delivery.item for delivery in receiver.dead_letters()] == ["received"]


def test_keyboard_interrupts_do_not_dead_letter_a_message(arena: shmtree.Arena, fails: Any) -> None:
    sender, receiver = arena.create_pair()
    sender.put(Raises())
    fails(KeyboardInterrupt())
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            receiver.get(timeout=60)
    fails(None)
    assert receiver.get(timeout=60) == "received"


def test_other_exceptions_consume_the_message(arena: shmtree.Arena, fails: Any) -> None:
    sender, receiver = arena.create_pair()
    for _ in range(2):
        sender.put(Raises())
    fails(RuntimeError("never"))
    for call in ("get", "take"):
        with pytest.raises(RuntimeError, match="never"):
            RECEIVING[call](receiver)
    assert receiver.qsize() == 0 and sender.pending_acks == 0


def test_get_many_returns_messages_before_a_memory_error(arena: shmtree.Arena, fails: Any) -> None:
    sender, receiver = arena.create_pair()
    sender.put_many(["first", Raises(), "last"])
    fails(MemoryError())
    assert receiver.get_many(5) == ["first"]
    with pytest.raises(MemoryError):
        receiver.get_many(5)
    fails(None)
    assert receiver.get_many(5) == ["received", "last"]


def test_another_process_gets_a_message_after_a_memory_error(arena: shmtree.Arena, fails: Any) -> None:
    sender, receiver = arena.create_pair()
    sender.put((Raises(), np.arange(100_000)))
    fails(MemoryError())
    with pytest.raises(MemoryError):
        receiver.get(timeout=60)
    with pytest.raises(TimeoutError):
        sender.wait_for_all_ack(timeout=0)
    fails(None)
    child = os.fork()
    if child == 0:
        text, array = receiver.get(timeout=60)
        os._exit(0 if text == "received" and array[-1] == 99_999 else 1)
    assert os.waitpid(child, 0)[1] == 0
    sender.wait_for_all_ack(timeout=60)
    assert receiver.empty()


def test_unreturned_message_stays_with_its_receiver_until_close(fails: Any) -> None:
    arena = shmtree.Arena(2 * MIB)
    sender, receiver = arena.create_pair()
    sender.put(Raises())
    sender.put("next")
    full: list[Any] = []
    with pytest.raises(shmtree.OutOfSharedMemory):
        full.extend(arena.new_empty(4096, np.uint8) for _ in range(10_000))
    fails(MemoryError())
    for _ in range(2):
        with pytest.raises(MemoryError):
            receiver.get(timeout=60)
        assert receiver.qsize() == 2 and receiver.stats()["returned"] == 0
    other = os.fork()
    if other == 0:
        os._exit(0 if receiver.get(timeout=60) == "next" else 1)
    assert os.waitpid(other, 0)[1] == 0
    full.clear()
    receiver.close()
    assert sender._channel.stats()["returned"] == 1


failures_left: dict[int, int] = {}


class Sometimes:
    """A number that runs out of memory when it is loaded, less often than receivers tolerate."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _sometimes, (self.number,)


def _sometimes(number: int) -> int:
    if failures_left[number] > 0:
        failures_left[number] -= 1
        raise MemoryError
    return number


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.parametrize("full", [False, True], ids=["room for records", "no room"])
def test_threads_with_random_memory_errors_lose_no_message(full: bool) -> None:
    arena = shmtree.Arena(4 * MIB)
    sender, receiver = arena.create_pair(capacity=64)
    kept = []
    if full:
        with pytest.raises(shmtree.OutOfSharedMemory):
            kept.extend(arena.new_empty(4096, np.uint8) for _ in range(10_000))
    failures_left.update({number: random.choice([0, 0, 0, 1, 1, 2, 7]) for number in range(500)})
    got: list[int] = []

    def receive() -> None:
        while True:
            try:
                got.append(receiver.get(timeout=60))
            except MemoryError:
                continue
            except shmtree.ChannelClosed:
                return

    threads = [threading.Thread(target=receive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(500):
        sender.put(Sometimes(number), timeout=60)
    while len(got) < 500 and all(thread.is_alive() for thread in threads):
        receiver.stats()
    sender.close()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(500)) and receiver.empty()
    assert violated(arena) == ""


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer needs more addresses than any limit leaves")
@pytest.mark.parametrize("kind", ["pair", "queue"])
def test_message_stays_queued_if_its_array_cannot_be_mapped(kind: str) -> None:
    run_program(
        f"""
        import asyncio
        arena = shmtree.Arena(512 * MIB)
        sender, receiver = arena.create_pair() if {kind == "pair"} else [shmtree.Queue(arena=arena)] * 2
        before, _ = resource.getrlimit(resource.RLIMIT_AS)
        if os.fork() == 0:
            array = arena.new_empty(25 * MIB, np.int64)  # 200 MiB
            array[:] = 7
            sender.put({{"a": array}}, move=True)
            sender.put("small")
            os._exit(0)
        assert os.wait()[1] == 0
        if {kind == "pair"}:
            if os.fork() == 0:
                receiver.take().nack()
                os._exit(0)
            assert os.wait()[1] == 0
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 30 * MIB, -1))
        calls = [receiver.get, lambda: receiver.get_many(2), lambda: asyncio.run(receiver.get_async())]
        calls += [receiver.take] if {kind == "pair"} else []
        for call in calls:
            try:
                call()
            except shmtree.OutOfSharedMemory as error:
                assert str(256 * MIB) in str(error) and "message 0" in str(error), error
            else:
                raise AssertionError("it was mapped")
            assert receiver.qsize() == 2
        resource.setrlimit(resource.RLIMIT_AS, (before, -1))
        got = receiver.get(timeout=30)["a"]
        assert got[0] == got[-1] == 7 and len(got) == 25 * MIB
        assert receiver.get(timeout=30) == "small"
        del got
        from shared_state import violated
        assert violated(arena) == ""
        """
    )
