"""Another thread closes the sender during a put: the message arrives before the end of the stream, or is refused."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from forks import fork

import shmtree

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Held:
    """A value that blocks when it is pickled, until `go` is set."""

    def __init__(self) -> None:
        self.come, self.go = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        self.come.set()
        assert self.go.wait(60)
        return int, (7,)


@contextlib.contextmanager
def threads(*functions: Callable[[], Any]) -> Iterator[None]:
    """Runs each function in its own thread. The threads must end soon after the block."""
    started = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in started:
        thread.start()
    yield
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def is_over(receiver: Any) -> bool:
    try:
        receiver.get_nowait()
    except queue.Empty:
        return False
    except shmtree.ChannelClosed:
        return True
    raise AssertionError("there was a message")


@contextlib.contextmanager
def held_put(put: Callable[[Held], Any]) -> Iterator[list[Any]]:
    """Starts a put that blocks in its object's code until the end of the block.

    Yields a list that gets its exception.
    """
    value, ended = Held(), []

    def act() -> None:
        try:
            put(value)
        except shmtree.ChannelClosed as error:
            ended.append(type(error))

    with threads(act):
        assert value.come.wait(60)
        yield ended
        value.go.set()


@pytest.mark.guarantee("close-during-put")
@pytest.mark.parametrize("many", [False, True])
def test_stream_ends_after_a_put_that_close_interrupts(many: bool) -> None:
    sender, receiver = shmtree.create_pair(capacity=8)
    with held_put(lambda value: sender.put_many([1, value]) if many else sender.put(value)) as ended:
        sender.close()
        assert sender.closed
        assert not is_over(receiver)
        with pytest.raises(shmtree.ChannelClosed):
            sender.put(2)
    assert list(receiver) == ([] if not many else [1] if ended else [1, 7])
    assert ended or many


def test_slow_generator_in_put_many_does_not_delay_stream_end() -> None:
    sender, receiver = shmtree.create_pair(capacity=8)
    come, go = threading.Event(), threading.Event()
    ended: list[Any] = []

    def items() -> Iterator[int]:
        yield 1
        come.set()
        assert go.wait(60)
        yield 2

    def act() -> None:
        try:
            sender.put_many(items())
        except shmtree.ChannelClosed as error:
            ended.append(getattr(error, "sent", 0))

    with threads(act):
        assert come.wait(60)
        sender.close()
        assert list(receiver) == [1]
        go.set()
    assert ended == [1]


@pytest.mark.guarantee("close-during-put")
def test_child_forked_during_put_does_not_hold_stream_open() -> None:
    sender, receiver = shmtree.create_pair(capacity=8)
    sender.put(0)
    assert receiver.get() == 0
    reading, writing = os.pipe()

    def wait_for_end() -> None:
        os.close(writing)
        os.read(reading, 1)

    with held_put(sender.put) as ended:
        sender.close()
        child = fork(wait_for_end)
    assert ended == [shmtree.ChannelClosed]
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)
    os.close(reading)
    os.close(writing)
    os.waitpid(child, 0)


@pytest.mark.guarantee("close-during-put")
def test_nested_puts_do_not_delay_the_end_of_another_stream() -> None:
    ends = [shmtree.create_pair() for _ in range(8)]
    other, others_receiver = shmtree.create_pair()

    class Nested:
        def __init__(self, depth: int) -> None:
            self.depth = depth

        def __reduce__(self) -> Any:
            if self.depth:
                ends[self.depth][0].put(Nested(self.depth - 1))
            else:
                other.close()
                assert is_over(others_receiver)
            return int, (7,)

    ends[0][0].put(Nested(7))
    assert [receiver.get() for _, receiver in ends[1:]] == [7] * 7


def close_midway(writer: Any, reader: Any, put: Callable[[Any], int], size: int, round: int) -> None:
    """Closes a writer while three threads put. Every message that `put` counts has to arrive."""
    value = np.zeros(size, np.float32)
    enough = threading.Event()
    put_counts: list[int] = []
    received = 0

    def act() -> None:
        with contextlib.suppress(shmtree.ChannelClosed):
            while True:
                try:
                    put_counts.append(put(value))
                except shmtree.ChannelClosed as error:
                    put_counts.append(getattr(error, "sent", 0))
                    raise

    def read() -> None:
        nonlocal received
        for _ in reader:
            received += 1
            if received >= 10 + round:
                enough.set()

    with threads(act, act, act, read):
        assert enough.wait(60)
        writer.close()
    assert received == sum(put_counts), f"round {round}"


def put_one(sender: Any, value: Any) -> int:
    sender.put(value)
    return 1


def put_bytes_of(sender: Any, value: Any) -> int:
    sender.put_frame(shmtree.pack(value))
    return 1


def put_list(sender: Any, value: Any) -> int:
    count: int = sender.put_many([value] * 5)
    return count


def put_generated(sender: Any, value: Any) -> int:
    count: int = sender.put_many(value for _ in range(5))
    return count


def put_in_place(sender: Any, value: Any) -> int:
    array = sender.new_empty(1000)
    array[:] = 1
    sender.put(array)
    return 1


def pair_of(capacity: int) -> tuple[Any, Any]:
    return shmtree.create_pair(capacity)


def broadcast_of(capacity: int) -> tuple[Any, Any]:
    broadcast: shmtree.Broadcast = shmtree.Broadcast(capacity)
    return broadcast, broadcast.subscribe()


@pytest.mark.guarantee("close-during-put")
@pytest.mark.parametrize(
    ("make", "put"),
    [(pair_of, put) for put in (put_one, put_bytes_of, put_list, put_generated, put_in_place)]
    + [(broadcast_of, put) for put in (put_one, put_list, put_in_place)],
)
@pytest.mark.parametrize("size", [5, 30_000])
def test_all_put_messages_arrive_if_the_writer_closes_midway(make: Any, put: Any, size: int) -> None:
    for round in range(20):
        writer, reader = make(1 + round % 4)
        close_midway(writer, reader, lambda value: put(writer, value), size, round)  # noqa: B023


@pytest.mark.guarantee("close-during-put")
@pytest.mark.parametrize("size", [5, 30_000])
def test_last_version_arrives_if_a_latest_closes_midway(size: int) -> None:
    def read_to_the_end() -> None:
        version = 0
        with contextlib.suppress(shmtree.ChannelClosed):
            while True:
                version = latest.get(version, timeout=60)[0]
                os.write(writing, b".")
        os._exit(0 if latest.version == version else 1)

    for round in range(10):
        latest: shmtree.Latest = shmtree.Latest()
        reading, writing = os.pipe()
        child = fork(read_to_the_end)
        os.close(writing)

        def act() -> None:
            with contextlib.suppress(shmtree.ChannelClosed):
                while True:
                    latest.publish(np.zeros(size, np.float32))  # noqa: B023

        with threads(act, act, act):
            os.read(reading, 1)
            latest.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"round {round}"
        os.close(reading)


@pytest.mark.guarantee("close-during-put")
def test_put_that_a_broadcast_close_interrupts_is_refused() -> None:
    broadcast: shmtree.Broadcast = shmtree.Broadcast()
    subscriber = broadcast.subscribe()
    with held_put(broadcast.put) as ended:
        broadcast.close()
        with pytest.raises(shmtree.ChannelClosed):
            subscriber.get(timeout=60)
    assert ended == [shmtree.ChannelClosed]
    with pytest.raises(shmtree.ChannelClosed):
        subscriber.get(timeout=0)


@pytest.mark.guarantee("close-during-get")
@pytest.mark.parametrize("many", [False, True])
def test_no_message_is_lost_if_the_receiver_closes_midway(many: bool) -> None:
    for round in range(20):
        sender, receiver = shmtree.create_pair(capacity=0)
        left = pickle.loads(pickle.dumps(receiver))
        sender.put_many(np.zeros(5 if i % 2 else 3_000) for i in range(1_000))
        received: list[int] = []

        def act() -> None:
            with contextlib.suppress(shmtree.ChannelClosed):
                while True:
                    received.append(len(receiver.get_many(7)) if many else len([receiver.get()]))  # noqa: B023

        with threads(act, act):
            while sum(received) < 20 * round:
                pass
            receiver.close()
        assert sum(received) + left.qsize() == 1_000, f"round {round}"
