"""Waits at a replay buffer, and how a close in another thread ends them."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from typing import Any

import numpy as np
import pytest
from shared_state import violated_by
from test_replay_processes import wait_for

import shmtree
from shmtree.replay import Episodes, Limits, RateLimit, ReplayBuffer

ONE_EACH = RateLimit(samples_per_insert=1, min_size=1, error_buffer=1)


class Waiting(threading.Thread):
    """A call in its own thread, and its result."""

    def __init__(self, call, *args, **options) -> None:
        super().__init__(daemon=True)
        self.call, self.args, self.options = call, args, options
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.call(*self.args, **self.options)
        except BaseException as error:
            self.error = error

    def ends_with(self, kind: type[BaseException]) -> bool:
        self.join(60)
        return not self.is_alive() and isinstance(self.error, kind)


def wait_until_asleep(thread: threading.Thread) -> None:
    def is_asleep() -> bool:
        with open(f"/proc/self/task/{thread.native_id}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"

    wait_for(lambda: thread.native_id is not None and is_asleep())


def full_buffer(**options) -> ReplayBuffer:
    """Returns a buffer with a rate limit that blocks adds until a row is sampled."""
    buffer = ReplayBuffer(100, example=0, limits=Limits(rate=ONE_EACH), **options)
    with buffer.writer() as writer:
        try:
            while True:
                writer.add(0, timeout=0)
        except queue.Full:
            return buffer


@pytest.mark.guarantee("replay-close")
@pytest.mark.parametrize("limit", [None, ONE_EACH])
@pytest.mark.parametrize("call", [lambda b: b.sample(4), lambda b: b.sample_sequences(4, 2)])
def test_close_ends_samples_that_wait_in_other_threads(limit, call):
    buffer = ReplayBuffer(100, example=0, episodes=Episodes(done=None), limits=Limits(rate=limit))
    waiting = [Waiting(call, buffer) for _ in range(3)]
    for each in waiting:
        wait_until_asleep(each)
    buffer.close()
    assert all(each.ends_with(shmtree.ChannelClosed) for each in waiting)


@pytest.mark.parametrize("call", [lambda b: b.add(1), lambda b: b.extend([1, 2, 3])])
def test_close_ends_adds_that_wait_in_other_threads(call):
    buffer = full_buffer()
    again = ReplayBuffer._opened(buffer._replay.arena, buffer._replay.block, None)
    waiting = [Waiting(call, buffer) for _ in range(3)]
    for each in waiting:
        wait_until_asleep(each)
    buffer.close()
    assert all(each.ends_with(shmtree.ChannelClosed) for each in waiting)
    again.sample(1, timeout=60)  # the buffer still works for other objects
    again.add(1, timeout=60)
    assert violated_by(again) == ""


def test_add_raises_after_another_thread_closed_the_buffer():
    buffer = ReplayBuffer(100, example=0)
    writer = buffer.writer()
    has_added, is_closed, done = threading.Event(), threading.Event(), []

    def add() -> None:
        buffer.add(1)
        has_added.set()
        is_closed.wait(60)
        with pytest.raises(shmtree.ChannelClosed):
            buffer.add(2)
        done.append(True)

    thread = threading.Thread(target=add)
    thread.start()
    assert has_added.wait(60)
    buffer.close()
    is_closed.set()
    thread.join(60)
    assert done == [True]
    with pytest.raises(shmtree.ChannelClosed):
        writer.add(3)


def test_closing_a_buffer_closes_only_its_own_writers():
    buffer = ReplayBuffer(100, example=0)
    other = ReplayBuffer._opened(buffer._replay.arena, buffer._replay.block, None)
    writer, vector, stays = buffer.writer(), buffer.vector_writer(2), other.writer()
    writer.add(1)
    vector.add([2, 3])
    buffer.close()
    assert writer.closed and vector.closed and not stays.closed
    for add in (lambda: writer.add(4), lambda: vector.add([4, 5]), lambda: writer.extend([4])):
        with pytest.raises(shmtree.ChannelClosed):
            add()
    assert stays.add(6) > 0 and len(other) == 4
    again = pickle.loads(pickle.dumps(other))  # another object of this process
    again.add(7)
    assert len(other) == 5


def test_closing_a_buffer_ends_waiting_adds_of_its_writers():
    buffer = full_buffer()
    writer, vector = buffer.writer(), buffer.vector_writer(2)
    waiting = [Waiting(writer.add, 1), Waiting(vector.add, [2, 3])]
    for each in waiting:
        wait_until_asleep(each)
    buffer.close()
    assert all(each.ends_with(shmtree.ChannelClosed) for each in waiting)


@pytest.mark.guarantee("replay-close")
def test_closing_a_writer_ends_only_its_own_adds():
    buffer = full_buffer()
    closed, other = buffer.writer(), buffer.writer()
    waiting, stays = Waiting(closed.add, 1), Waiting(other.add, 2)
    late = Waiting(closed.add, 3)  # waits for the other thread of its stream
    for each in (waiting, stays, late):
        wait_until_asleep(each)
    closed.close()
    assert waiting.ends_with(shmtree.ChannelClosed) and late.ends_with(shmtree.ChannelClosed)
    assert stays.is_alive()
    buffer.sample(1, timeout=60)
    stays.join(60)
    assert not stays.is_alive() and stays.error is None


def test_closing_a_vector_writer_ends_its_waiting_add():
    buffer = full_buffer()
    writers = buffer.vector_writer(3)
    waiting = Waiting(writers.add, [1, 2, 3])
    wait_until_asleep(waiting)
    writers.close()
    assert waiting.ends_with(shmtree.ChannelClosed)


def test_signal_handler_can_close_the_writer_it_interrupts():
    buffer = full_buffer()
    writer = buffer.writer()
    before = signal.signal(signal.SIGUSR1, lambda *_: writer.close())
    main = threading.main_thread()

    def interrupt() -> None:
        wait_until_asleep(main)
        signal.pthread_kill(main.ident, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(shmtree.ChannelClosed):
            writer.add(1, timeout=60)
    finally:
        thread.join(60)
        signal.signal(signal.SIGUSR1, before)
    buffer.sample(1, timeout=60)
    buffer.add(1, timeout=60)


def test_full_reports_how_many_rows_extend_added():
    buffer = ReplayBuffer(
        100, example=0, limits=Limits(rate=RateLimit(samples_per_insert=1, min_size=5, error_buffer=2))
    )
    with pytest.raises(queue.Full) as caught:
        buffer.extend(list(range(20)), timeout=0.01)
    assert caught.value.sent == len(buffer) == 7
    with pytest.raises(queue.Full) as caught:
        buffer.extend([7, 8, 9], timeout=0)
    assert caught.value.sent == 0
    buffer.sample(2)
    with pytest.raises(queue.Full) as caught:
        buffer.extend([7, 8, 9], timeout=0)
    assert caught.value.sent == 2
    assert set(buffer.sample(2).data.tolist()) <= set(range(9))


def test_full_reports_how_many_streams_of_a_vector_have_a_row():
    buffer = ReplayBuffer(
        100, example=0, limits=Limits(rate=RateLimit(samples_per_insert=1, min_size=5, error_buffer=2))
    )
    writers = buffer.vector_writer(5)
    writers.add([0, 1, 2, 3, 4])
    with pytest.raises(queue.Full) as caught:
        writers.add([0, 1, 2, 3, 4], timeout=0.01)
    assert caught.value.sent == 2
    assert [writer.added for writer in writers.writers] == [2, 2, 1, 1, 1]
    assert len(buffer) == 7


def test_repeated_add_to_a_full_vector_skips_the_same_rows():
    columns: Any = {"obs": ((), np.float32), "terminated": ((), np.bool_), "truncated": ((), np.bool_)}
    limit = RateLimit(samples_per_insert=1, min_size=2, error_buffer=2)
    buffer = ReplayBuffer(64, columns=columns, limits=Limits(rate=limit))
    writers = buffer.vector_writer(4, autoreset="next_step")
    no = np.zeros(4, np.bool_)
    rows = {"obs": np.zeros(4, np.float32), "terminated": no, "truncated": no}
    writers.add({**rows, "terminated": np.array([True, False, False, False])}, timeout=60)
    for _ in range(2):
        with pytest.raises(queue.Full) as caught:
            writers.add(rows, timeout=0)
        assert caught.value.sent == 0
    buffer.sample(1)
    with pytest.raises(queue.Full) as caught:
        writers.add(rows, timeout=0)
    assert caught.value.sent == 2  # the first stream skips its row, the second one has stored its row
    assert [writer.added for writer in writers.writers] == [1, 2, 1, 1]
    buffer.sample(1)
    assert (writers.add(rows, reset=[False, True, True, True], timeout=60) == -1).tolist() == [False, True, True, True]


def test_close_during_extend_reports_how_many_rows_were_added():
    buffer = ReplayBuffer(
        100, example=0, limits=Limits(rate=RateLimit(samples_per_insert=1, min_size=5, error_buffer=2))
    )
    writer = buffer.writer()
    waiting = Waiting(writer.extend, list(range(20)))
    wait_for(lambda: len(buffer) == 7)
    writer.close()
    assert waiting.ends_with(shmtree.ChannelClosed)
    assert waiting.error.sent == 7


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGKILL])
def test_stats_name_waiting_processes_and_no_dead_ones(start, death):
    full = full_buffer()
    empty = ReplayBuffer(100, example=0, limits=Limits(rate=ONE_EACH))
    assert empty.stats()["waiting"] == {"add": [], "sample": []}
    adding, drawing = start(full.add, 1), start(empty.sample, 1)
    wait_for(lambda: full.stats()["waiting"]["add"] and empty.stats()["waiting"]["sample"])
    assert full.stats()["waiting"] == {"add": [adding.pid], "sample": []}
    assert empty.stats()["waiting"] == {"add": [], "sample": [drawing.pid]}

    os.kill(adding.pid, death)
    adding.join(60)
    assert full.stats()["waiting"] == {"add": [], "sample": []}
    empty.add(1)
    drawing.join(60)
    assert drawing.exitcode == 0
    assert empty.stats()["waiting"] == {"add": [], "sample": []}
