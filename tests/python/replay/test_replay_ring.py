"""Rows of a replay buffer by place, which is how the classes with other libraries' interfaces number them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shmtree.replay import Episodes, Limits, Prioritized, ReplayBuffer, Sampling
from shmtree.replay._ring import Ring
from shmtree.replay._ring_array import RingArray

COLUMNS = {"obs": ((2,), np.float32), "more": {"number": np.int64}}


def ring_of(capacity: int) -> Ring:
    return Ring(
        ReplayBuffer(capacity, columns=COLUMNS, episodes=Episodes(done=None, reward=None), limits=Limits(chunk=1))
    )


def add(ring: Ring, numbers: range) -> np.ndarray[Any, Any]:
    column = np.array(numbers)
    return ring.shared.extend({"obs": np.stack([column] * 2, 1), "more": {"number": column}})


def test_rows_are_read_by_their_indices():
    ring = ring_of(4)
    index = add(ring, range(6))

    rows, there = ring.shared._replay.rows_at(np.append(index, 99).astype(np.uint64))

    assert there.tolist() == [False] * 2 + [True] * 4 + [False]
    assert rows["more"]["number"][there].tolist() == [2, 3, 4, 5]
    assert rows["obs"][there][:, 1].tolist() == [2, 3, 4, 5]
    none, there = ring.shared._replay.rows_at(np.empty(0, np.uint64))
    assert (none["obs"].shape, len(there)) == ((0, 2), 0)
    with pytest.raises(TypeError):
        ring.shared._replay.rows_at(np.zeros(1))


@pytest.mark.guarantee("replay-compatible")
def test_row_is_at_its_number_modulo_capacity():
    ring = ring_of(4)
    assert (len(ring), ring.next) == (0, 0)
    index = add(ring, range(6))

    assert ring.place_of(index).tolist() == [0, 1, 2, 3, 0, 1]
    assert (len(ring), ring.added, ring.next) == (4, 6, 2)
    assert ring.read(np.arange(4), 0)["more"]["number"].tolist() == [4, 5, 2, 3]


def test_numbering_restarts_at_0_after_clear():
    ring = ring_of(4)
    add(ring, range(6))
    before = ring.revision
    ring.clear()

    assert (len(ring), ring.next, ring.revision > before) == (0, 0, True)
    assert ring.index_at(np.arange(4)).tolist() == [0] * 4
    add(ring, range(10, 12))
    assert ring.read(np.arange(3), -1)["more"]["number"].tolist() == [10, 11, -1]
    ring.clear()
    ring.begin_at(3)
    add(ring, range(20, 24))
    assert ring.read(np.arange(4), -1)["more"]["number"].tolist() == [21, 22, 23, 20]


def test_unfinished_row_reads_as_the_previous_row(monkeypatch):
    ring = ring_of(4)
    add(ring, range(6))
    tickets = ring._tickets()
    monkeypatch.setattr(ring, "_tickets", lambda: tickets + 1)  # as if another process were writing the next row

    assert ring.read(np.arange(4), -1)["more"]["number"].tolist() == [4, 5, 5, 3]


def test_ring_array_is_indexed_like_a_numpy_array():
    ring = ring_of(6)
    add(ring, range(5))
    column = RingArray(ring, ("obs",), (3, 2), (2,), np.float32, 0)

    expected = np.zeros((3, 2, 2), np.float32)
    expected.reshape(6, 2)[:5] = np.arange(5)[:, None]
    assert (column.shape, column.ndim, column.dtype, len(column), column.nbytes) == ((3, 2, 2), 3, np.float32, 3, 48)
    for key in (0, -1, slice(1, 3), (1, 1), (slice(None), 0), ([2, 0], [1, 0]), ..., (..., 1), (np.array([0]), [1], 0)):
        assert np.array_equal(column[key], expected[key]), key
    assert np.array_equal(np.asarray(column), expected)
    with pytest.raises(IndexError):
        column[3]


def test_overwritten_rows_do_not_count_for_weights():
    buffer = ReplayBuffer(
        4,
        columns=COLUMNS,
        sampling=Sampling(Prioritized(alpha=1.0, eps=0)),
        episodes=Episodes(done=None, reward=None),
        limits=Limits(chunk=1),
    )
    row = {"obs": [0, 0], "more": {"number": 0}}
    buffer.add(row, priority=0.001)
    for _ in range(4):
        buffer.add(row, priority=1.0)

    buffer._replay.drop_overwritten()

    assert buffer.sample(10, weights="buffer").weight.tolist() == [1.0] * 10


def test_the_largest_priority_can_be_reset():
    buffer = ReplayBuffer(
        4,
        columns=COLUMNS,
        sampling=Sampling(Prioritized()),
        episodes=Episodes(done=None, reward=None),
        limits=Limits(chunk=1),
    )
    buffer.add({"obs": [0, 0], "more": {"number": 0}}, priority=7.0)
    buffer._replay.reset_max_priority(0)
    assert buffer.max_priority == 1.0
    with pytest.raises(ValueError, match="no such sampler"):
        buffer._replay.reset_max_priority(1)
