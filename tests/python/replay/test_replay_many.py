"""Many rows at once: columns, a vector of streams, sequences; and rate limits between writers and samplers."""

from __future__ import annotations

import os
import queue
import signal
import threading
from typing import Any

import numpy as np
import pytest
import replay_peers
from replay_options import grouped

from shmtree.replay import Episodes, Fifo, Lifo, MaxPriority, Prioritized, RateLimit, ReplayBuffer, Uniform

OBS = np.zeros(2, np.float32)


def row(number: int, done: bool = False) -> dict[str, Any]:
    return {"obs": np.full(2, number, np.float32), "reward": float(number), "done": done, "n": number}


def columns(first: int, count: int, **leaves: Any) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    made = {
        "obs": np.repeat(numbers[:, None], 2, 1).astype(np.float32),
        "reward": numbers.astype(np.float32),
        "done": np.zeros(count, bool),
        "n": numbers,
    }
    return {**made, **leaves}


def buffer_with(capacity: int = 1000, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, example=row(0), **grouped(chunk=8, **options))


def test_extend_returns_the_index_of_each_row():
    buffer = buffer_with()
    index = buffer.extend(columns(0, 100))
    assert len(buffer) == len(set(index.tolist())) == 100
    batch = buffer.sample(1000)
    assert (index[batch.data["n"]] == batch.index).all()
    assert (batch.data["obs"] == batch.data["n"][:, None]).all()


def test_columns_of_any_layout_and_kind_are_added():
    buffer = buffer_with()
    table = np.arange(40.0).reshape(20, 2)
    for obs in (table[::-1], np.asfortranarray(table), np.broadcast_to(table[0], (20, 2)), table[:20:1].tolist()):
        index = buffer.extend(columns(0, 20, obs=obs, reward=list(range(20)), n=np.arange(20, dtype=np.int16)))
        batch = buffer.sample(4000)
        newest = np.isin(batch.index, index)
        assert (batch.data["obs"][newest] == np.asarray(obs, np.float32)[batch.data["n"][newest]]).all()


@pytest.mark.guarantee("replay-refused-rows")
@pytest.mark.parametrize(
    ("leaves", "text"),
    [
        (
            {"obs": np.zeros((5, 3), np.float32)},
            r"rows\['obs'\] has the shape \(5, 3\); for n rows it must be \(n, 2\)",
        ),
        ({"n": np.zeros(4, int)}, r"rows\['n'\] has 4 rows and rows\['obs'\] has 5"),
        ({"n": np.zeros(5)}, r"rows\['n'\] is of float64"),
        ({"n": 3}, r"rows\['n'\] has the shape \(\)"),
        ({"more": 3}, r"rows\['more'\] is unknown"),
    ],
)
def test_unfitting_columns_are_rejected_and_add_nothing(leaves, text):
    buffer = buffer_with()
    with pytest.raises(ValueError, match=text):
        buffer.extend(columns(0, 5, **leaves))
    assert len(buffer) == 0


def test_extend_of_no_rows_adds_none():
    buffer = buffer_with()
    assert buffer.extend(columns(0, 0)).tolist() == []
    assert len(buffer) == 0


def test_extend_ends_episodes_by_mask_and_by_done_column():
    buffer = buffer_with(n_step=3, gamma=1.0)
    done, ends = np.zeros(12, bool), np.zeros(12, bool)
    done[3] = ends[7] = True
    buffer.extend(columns(0, 12, done=done), ends=ends)
    batch = buffer.sample(2000)
    sums = dict(zip(batch.data["n"].tolist(), batch.data["reward"].tolist(), strict=True))
    discounts = dict(zip(batch.data["n"].tolist(), batch.discount.tolist(), strict=True))
    assert sums == {0: 3, 1: 6, 2: 5, 3: 3, 4: 15, 5: 18, 6: 13, 7: 7, 8: 27, 9: 30}
    assert {n for n, left in discounts.items() if left == 0} == {1, 2, 3}  # truncated episodes keep their discount


def test_extend_with_next_needs_ends_without_a_done_column():
    buffer = ReplayBuffer(100, example={"obs": OBS}, episodes=Episodes(next="obs", done=None))
    with pytest.raises(ValueError, match="need ends"):
        buffer.extend({"obs": np.zeros((5, 2), np.float32)})
    buffer.extend({"obs": np.zeros((5, 2), np.float32)}, ends=[False] * 4 + [True])
    assert len(buffer) == 4  # the successor of the last row may still come
    buffer.end()
    assert len(buffer) == 5


def test_extend_requires_one_valid_priority_per_row():
    buffer = buffer_with(sampler=Prioritized(alpha=1, eps=1e-30))
    buffer.extend(columns(0, 50), priority=np.where(np.arange(50) == 7, 1.0, 0.0))
    assert set(buffer.sample(100).data["n"].tolist()) == {7}
    with pytest.raises(ValueError):
        buffer.extend(columns(0, 2), priority=[1.0, -1.0])
    with pytest.raises(ValueError, match=r"priority has the shape \(3,\); with 2 rows"):
        buffer.extend(columns(0, 2), priority=[1.0, 1.0, 1.0])
    assert len(buffer) == 50


def test_vector_writer_adds_a_row_to_each_stream():
    buffer = buffer_with(next="obs")
    with buffer.vector_writer(3) as writer:
        writer.version = 5
        for step in range(10):
            end = np.array([step == 4, False, False])
            final = {"obs": np.full((3, 2), 99, np.float32)}
            writer.add(columns(100 * step, 3), end=end, final=final)
        streams = [each.stream for each in writer.writers]
    batch = buffer.sample(2000)
    env = batch.data["n"] % 100
    assert [streams[i] for i in env] == batch.writer.tolist()
    follows = dict(zip(batch.data["n"].tolist(), batch.data["next"]["obs"][:, 0].tolist(), strict=True))
    assert follows == {100 * s + e: 99 if (s, e) == (4, 0) else 100 * (s + 1) + e for s in range(9) for e in range(3)}
    assert (batch.version == 5).all()
    assert (batch.discount > 0).all()


def test_vector_writer_rejects_unfitting_rows_as_a_whole():
    buffer = buffer_with(next="obs")
    writer = buffer.vector_writer(3)
    with pytest.raises(ValueError, match="rows has 4 rows; it must have 3, one for each stream"):
        writer.add(columns(0, 4))
    with pytest.raises(ValueError, match="needs final"):
        writer.add(columns(0, 3), end=[True, False, False])
    with pytest.raises(ValueError, match=r"final\['obs'\]"):
        writer.add(columns(0, 3), end=[True, False, False], final={"obs": np.zeros((3, 5))})
    assert [each.added for each in writer.writers] == [0, 0, 0]


def test_cleared_buffer_has_only_rows_added_later():
    buffer = buffer_with(sampler=Prioritized())
    old = buffer.extend(columns(0, 50))
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=0)
    assert not buffer.update_priorities(old, np.ones(50)).any()
    new = buffer.extend(columns(100, 20))
    assert len(buffer) == 20
    assert new.min() > old.max()
    assert sorted(buffer.sample(20, replace=False).data["n"].tolist()) == list(range(100, 120))


# --- Sequences


@pytest.mark.guarantee("replay-episode-bounds")
def test_sequence_is_consecutive_rows_of_one_episode():
    buffer = buffer_with()
    for first in (0, 100, 200):
        with buffer.writer() as writer:
            for number in range(first, first + 20):
                writer.add(row(number, number == first + 9))
    batch = buffer.sample_sequences(200, 6)
    assert batch.data["obs"].shape == (200, 6, 2)
    assert batch.mask.shape == batch.index.shape == (200, 6)
    numbers, mask = batch.data["n"], batch.mask
    assert mask[:, 0].all()
    steps = np.diff(numbers, axis=1)[mask[:, 1:]]
    assert (steps == 1).all()
    assert (numbers[~mask] == 0).all()
    ends = numbers[:, 0] + mask.sum(1) - 1
    assert ((mask.sum(1) == 6) | np.isin(ends % 100, [9, 19])).all()


def test_sequences_with_stride_exclude_partial_ones_on_request():
    buffer = buffer_with()
    buffer.extend(columns(0, 30))
    batch = buffer.sample_sequences(100, 5, stride=2, partial="refuse")
    assert batch.mask.all()
    assert (np.diff(batch.data["n"], axis=1) == 2).all()
    with pytest.raises(queue.Empty):
        buffer.sample_sequences(1, 31, partial="refuse", timeout=0)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 3)])
def test_sample_sequences_rejects_sizes_below_one(sizes):
    with pytest.raises(ValueError):
        buffer_with().sample_sequences(*sizes)


# --- Orders


def test_fifo_lifo_and_max_priority_sample_in_their_order():
    buffer = buffer_with(sampler={"fifo": Fifo(), "lifo": Lifo(), "most": MaxPriority()})
    buffer.extend(columns(0, 20), priority=np.arange(20) * 7 % 20)
    assert buffer.sample(3, sampler="fifo").data["n"].tolist() == [0, 1, 2]
    assert buffer.sample(3, sampler="lifo").data["n"].tolist() == [19, 18, 17]
    most = buffer.sample(3, sampler="most")
    assert (most.data["n"] * 7 % 20).tolist() == [19, 18, 17]


def test_fifo_with_max_times_one_samples_each_row_once():
    buffer = buffer_with(sampler=Fifo(max_times=1))
    buffer.extend(columns(0, 10))
    drawn = [buffer.sample(3, timeout=0).data["n"].tolist() for _ in range(3)]
    assert drawn == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(queue.Empty):
        buffer.sample(3, timeout=0)
    buffer.extend(columns(10, 5))
    assert buffer.sample(3).data["n"].tolist() == [9, 10, 11]


# --- Limits


def test_sample_waits_for_min_size_rows():
    buffer = buffer_with(rate=RateLimit(samples_per_insert=4, min_size=20, error_buffer=40))
    buffer.extend(columns(0, 19))
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=0.01)
    buffer.add(row(1))
    assert len(buffer.sample(1, timeout=60)) == 1


def test_rate_limit_blocks_add_until_rows_are_sampled():
    buffer = buffer_with(rate=RateLimit(samples_per_insert=2, min_size=5, error_buffer=10))
    with pytest.raises(queue.Full):
        replay_peers.add_rows(buffer, row(1), timeout=0.01)
    stuck = len(buffer)
    assert 5 <= stuck <= 20
    drawn: list[int] = []
    thread = threading.Thread(target=lambda: drawn.extend(len(buffer.sample(2, timeout=60)) for _ in range(20)))
    thread.start()
    for number in range(20):
        buffer.add(row(number), timeout=60)
    thread.join(60)
    assert drawn == [2] * 20
    stats = buffer.stats()
    assert (stats["inserted"], stats["sampled"]) == (stuck + 20, 40)
    assert stats["samples"] == {"default": 40}


@pytest.mark.parametrize(
    "make",
    [
        lambda: RateLimit(0),
        lambda: RateLimit(1, min_size=0),
        lambda: RateLimit(float("nan")),
        lambda: buffer_with(10, rate=RateLimit(1, min_size=100)),
        lambda: buffer_with(rate=RateLimit(8, error_buffer=0.5)),
    ],
)
def test_rate_limit_that_blocks_both_sides_is_rejected(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.guarantee("replay-killed-writers")
def test_killed_writer_that_waited_for_the_limit_blocks_none(start):
    buffer = buffer_with(rate=RateLimit(samples_per_insert=1, min_size=5, error_buffer=5))
    child = start(replay_peers.add_rows, buffer, {**row(1)})
    while len(buffer) < 5:
        os.sched_yield()
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    for _ in range(50):
        buffer.sample(1, timeout=60)
        buffer.add(row(2), timeout=60)


def test_open_restores_the_rate_limit(runtime_directory, name):
    buffer = buffer_with(name=name, rate=RateLimit(2.0, 10, 30.0), sampler=Uniform(max_times=4))
    other = ReplayBuffer.open(name)
    assert other._spec == buffer._spec
    other.extend(columns(0, 9))
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=0)


def test_extend_of_no_rows_adds_none_with_next_too():
    buffer = ReplayBuffer(
        100, example={"obs": np.zeros(2, "f4"), "reward": 0.0, "done": False}, episodes=Episodes(next="obs")
    )
    none = {"obs": np.zeros((0, 2)), "reward": np.zeros(0), "done": np.zeros(0, bool)}
    assert len(buffer.extend(none)) == 0
    assert len(buffer.extend(none, ends=np.zeros(0, bool))) == 0
    with pytest.raises(ValueError, match="^end has the shape"):
        buffer.vector_writer(2).add({key: np.zeros((2, *each.shape[1:])) > 1 for key, each in none.items()}, end=5)
