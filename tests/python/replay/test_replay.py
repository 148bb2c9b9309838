"""Replay buffers: rows are added and sampled, and the oldest rows are dropped first."""

from __future__ import annotations

import gc
import queue
import threading
import time
from typing import Any

import numpy as np
import pytest
from shared_state import violated_by

import shmtree
from shmtree.replay import Limits, ReplayBuffer, Sampling


def row(number: int = 0) -> dict[str, Any]:
    """Returns a row with its number in all leaves."""
    small = np.full(4, number, np.float32)
    return {
        "obs": small,
        "pixels": np.full((3, 200), number % 256, np.uint8),
        "action": number,
        "reward": float(number),
    }


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(100, example=row(), limits=Limits(chunk=1))


def check(data: dict[str, Any]) -> None:
    """Asserts that no row is torn."""
    assert (data["obs"] == data["action"][:, None]).all()
    assert (data["pixels"] == data["action"][:, None, None] % 256).all()
    assert (data["reward"] == data["action"]).all()


def test_added_row_is_sampled(buffer):
    buffer.add(row(7))
    batch = buffer.sample(3)
    assert batch.data["action"].tolist() == [7, 7, 7]
    check(batch.data)


def test_batch_has_one_array_per_column_and_one_index_per_row(buffer):
    buffer.add(row(1))
    batch = buffer.sample(5)
    shapes = {key: (leaf.shape, leaf.dtype.name) for key, leaf in batch.data.items()}
    assert shapes == {
        "obs": ((5, 4), "float32"),
        "pixels": ((5, 3, 200), "uint8"),
        "action": ((5,), "int64"),
        "reward": ((5,), "float32"),
    }
    assert len(batch) == 5
    assert (batch.index.shape, batch.index.dtype) == ((5,), np.int64)


@pytest.mark.guarantee("replay-newest-rows")
def test_buffer_with_chunks_of_one_row_has_the_newest_rows(buffer):
    for number in range(250):
        buffer.add(row(number))
        assert len(buffer) == min(number + 1, 100)
    drawn = set(buffer.sample(5000).data["action"].tolist())
    assert drawn == set(range(150, 250))


@pytest.mark.guarantee("replay-newest-rows")
def test_add_returns_the_index_that_sample_reports(buffer):
    index = [buffer.add(row(number)) for number in range(20)]
    batch = buffer.sample(100)
    assert [index[number] for number in batch.data["action"]] == batch.index.tolist()


def test_age_of_a_row_counts_the_rows_added_since(buffer):
    for number in range(30):
        buffer.add(row(number))
    batch = buffer.sample(200)
    assert (batch.age == 29 - batch.data["action"]).all()


def test_every_row_has_the_version_of_its_writer(buffer):
    with buffer.writer() as writer:
        for number in range(10):
            writer.version = number // 5
            writer.add(row(number))
    batch = buffer.sample(100)
    assert (batch.version == batch.data["action"] // 5).all()


def test_extend_adds_as_many_rows_as_its_arrays_are_long(buffer):
    numbers = np.arange(50)
    buffer.extend(
        {
            "obs": np.repeat(numbers[:, None], 4, 1).astype(np.float32),
            "pixels": np.broadcast_to(numbers[:, None, None].astype(np.uint8), (50, 3, 200)),
            "action": numbers,
            "reward": numbers.astype(np.float64),
        }
    )
    assert len(buffer) == 50
    check(buffer.sample(500).data)


@pytest.mark.parametrize("n", [0, -1])
def test_sample_of_no_rows_raises_value_error(buffer, n):
    with pytest.raises(ValueError, match=f"n is {n}; it must be at least 1"):
        buffer.sample(n)


def test_sample_waits_for_the_first_row(buffer):
    drawn: list[int] = []
    thread = threading.Thread(target=lambda: drawn.extend(buffer.sample(2, timeout=60).data["action"].tolist()))
    thread.start()
    time.sleep(0.05)
    buffer.add(row(3))
    thread.join(60)
    assert drawn == [3, 3]


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_sample_of_an_empty_buffer_raises_empty_after_timeout(buffer, timeout):
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=timeout)


@pytest.mark.guarantee("replay-batch-arrays")
def test_batch_arrays_do_not_change_during_later_samples(buffer):
    for number in range(100):
        buffer.add(row(number))
    kept = [buffer.sample(16) for _ in range(20)]
    before = [batch.data["obs"].copy() for batch in kept]
    for _ in range(100):
        buffer.sample(16)
    assert all((batch.data["obs"] == copy).all() for batch, copy in zip(kept, before, strict=True))


@pytest.mark.guarantee("replay-batch-arrays")
def test_batch_memory_is_reused_once_no_array_refers_to_it(buffer):
    buffer.add(row(1))
    seen = set()
    for _ in range(50):
        batch = buffer.sample(64)
        seen.add(batch.data["obs"].ctypes.data)
    assert len(seen) == 2  # the batch that is in use, and the one that is prefetched


def test_view_retains_the_memory_of_its_batch(buffer):
    buffer.add(row(1))
    view = buffer.sample(64).data["pixels"][3:5]
    for number in range(2, 50):
        buffer.add(row(number))
        buffer.sample(64)
    assert (view == 1).all()


def test_a_batch_outlives_its_buffer(buffer):
    buffer.add(row(5))
    batch = buffer.sample(8)
    buffer.close()
    del buffer
    gc.collect()
    check(batch.data)


def test_equal_seeds_sample_equal_rows():
    def draws(seed: int) -> list[int]:
        buffer = ReplayBuffer(100, example=0, sampling=Sampling(seed=seed))
        for number in range(100):
            buffer.add(number)
        return [number for _ in range(5) for number in buffer.sample(20).data.tolist()]

    assert draws(3) == draws(3) != draws(4)


def test_batches_yields_more_rows_than_the_buffer_has(buffer):
    buffer.add(row(1))
    batches = buffer.batches(4)
    assert [len(next(batches)) for _ in range(3)] == [4, 4, 4]


def test_empty_buffer_is_truthy(buffer):
    assert buffer
    assert len(buffer) == 0


def test_closed_buffer_raises_channel_closed(buffer):
    writer = buffer.writer()
    buffer.add(row())
    buffer.close()
    buffer.close()
    assert buffer.closed
    for use in (len, lambda it: it.add(row()), lambda it: it.sample(1), lambda it: it.writer()):
        with pytest.raises(shmtree.ChannelClosed):
            use(buffer)
    with pytest.raises(shmtree.ChannelClosed):
        writer.add(row())


def test_closed_writer_raises_channel_closed(buffer):
    with buffer.writer() as writer:
        writer.add(row())
    assert writer.closed
    with pytest.raises(shmtree.ChannelClosed):
        writer.add(row())


@pytest.mark.guarantee("replay-whole-rows")
def test_threads_add_concurrently_and_lose_no_row():
    buffer = ReplayBuffer(10_000, example=row())

    def add_many(first: int) -> None:
        for number in range(first, first + 500):
            buffer.add(row(number))

    threads = [threading.Thread(target=add_many, args=(500 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(buffer) == 4000
    batch = buffer.sample(4000, replace=False)
    check(batch.data)
    assert sorted(batch.data["action"].tolist()) == list(range(4000))


def test_threads_may_share_a_writer():
    large = ReplayBuffer(1000, example=np.zeros(50_000, np.uint16), limits=Limits(chunk=1))
    writer = large.writer()

    def add_many(number: int) -> None:
        for _ in range(50):
            writer.add(np.full(50_000, number, np.uint16))

    threads = [threading.Thread(target=add_many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(large) == writer.added == 200
    drawn = large.sample(100).data
    assert (drawn == drawn[:, :1]).all()


def test_closed_buffer_frees_its_memory_in_the_arena(arena):
    buffer = ReplayBuffer(1000, example=row(), arena=arena)
    for number in range(3000):
        buffer.add(row(number))
    assert violated_by(buffer) == ""
    buffer.close()
    gc.collect()
    assert arena.stats()["used_bytes"] == 0
