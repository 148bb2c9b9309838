"""Ends of episodes among many rows, with last observations, and with rows that are no steps."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import RateLimit, ReplayBuffer

ROW = {"obs": np.zeros(2, np.float32), "n": 0, "reward": 0.0, "done": False}
DONE, CUT = [3, 11], [7, 8]


def columns(count: int = 14, first: int = 0) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    obs = np.repeat(numbers[:, None], 2, 1).astype(np.float32)
    return {"obs": obs, "n": numbers, "reward": numbers.astype(np.float32), "done": np.isin(numbers, DONE)}


def at(number: int) -> dict[str, Any]:
    """Returns the last observation after the row of that number."""
    return {"obs": np.full(2, 100 + number, np.float32)}


def finals(numbers: Any) -> dict[str, Any]:
    return {"obs": np.stack([at(number)["obs"] for number in numbers])}


def buffer_with(**options: Any) -> ReplayBuffer:
    return ReplayBuffer(1000, example=ROW, **grouped(**{"next": "obs", "gamma": 0.5, **options}))


def drawn(buffer: ReplayBuffer) -> dict[int, tuple[float, ...]]:
    """Returns for each row: its successor, sum of rewards and discount."""
    batch = buffer.sample(3000)
    found = (batch.data["n"], batch.data["next"]["obs"][:, 0], batch.data["reward"], batch.discount)
    return {int(n): tuple(map(float, rest)) for n, *rest in zip(*found, strict=True)}


def added_one_by_one(**options: Any) -> dict[int, tuple[float, ...]]:
    buffer = buffer_with(**options)
    rows = columns()
    with buffer.writer() as writer:
        for n in range(14):
            writer.add({key: leaf[n] for key, leaf in rows.items()})
            if n in DONE + CUT:
                writer.end(final=at(n), truncated=n in CUT)
    return drawn(buffer)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("numbers", [sorted(DONE + CUT), range(14)])
def test_extend_with_finals_equals_adding_rows_one_by_one(n_step, chunk, numbers):
    buffer = buffer_with(n_step=n_step)
    with buffer.writer() as writer:
        index = writer.extend(columns(), ends=np.isin(np.arange(14), CUT), final=finals(numbers))
        assert writer.added == 14
    assert drawn(buffer) == added_one_by_one(n_step=n_step)
    batch = buffer.sample(1000)
    assert (index[batch.data["n"]] == batch.index).all()


def test_episode_continues_in_the_next_extend():
    buffer = buffer_with()
    with buffer.writer() as writer:
        for first in (0, 5, 10):
            rows = columns(min(5, 14 - first), first)
            cut = np.isin(rows["n"], CUT)
            writer.extend(rows, ends=cut, final=finals(rows["n"]))
    assert drawn(buffer) == added_one_by_one()


def test_buffer_extend_accepts_finals_too():
    buffer = buffer_with()
    buffer.extend(columns(4), final=finals([3]))
    assert drawn(buffer)[3] == (103.0, 3.0, 0.0)


REFUSED = [
    (
        {"final": finals([1, 2])},
        "final has 2 rows; it must have 14, one for each row, or 4, one for each row that ends an episode",
    ),
    ({"final": {"obs": np.zeros((4, 3))}}, r"final\['obs'\] has the shape \(4, 3\); for n rows it must be \(n, 2\)"),
    ({"final": {"n": np.zeros(4)}}, r"final\['obs'\] is missing; final\['n'\] is unknown"),
    ({}, "is truncated: the buffer has next=, so a truncated episode needs final"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_unfitting_finals_are_rejected_and_add_nothing(given, text):
    buffer = buffer_with()
    with buffer.writer() as writer:
        with pytest.raises(ValueError, match=text):
            writer.extend(columns(), ends=np.isin(np.arange(14), CUT), **given)
        assert writer.added == 0


def test_finals_without_next_are_rejected():
    with pytest.raises(ValueError, match="final needs a buffer with next="):
        buffer_with(next=(), n_step=2).extend(columns(), final=finals([3, 11]))


def test_extend_that_times_out_leaves_earlier_rows_in_the_buffer():
    buffer = buffer_with(rate=RateLimit(samples_per_insert=1.0, min_size=1, error_buffer=4.0))
    with buffer.writer() as writer:
        with pytest.raises(queue.Full):
            writer.extend(columns(), ends=np.isin(np.arange(14), CUT), final=finals(range(14)), timeout=0.05)
        assert 1 <= writer.added < 14


# --- Vectors of environments


def test_rows_marked_reset_are_not_added():
    buffer = buffer_with()
    with buffer.vector_writer(3) as writer:
        rows = {**columns(3), "done": np.array([False, True, False])}
        index = writer.add(rows, end=[0, 0, 1], final=finals(range(3)), reset=[False, True, True])
        assert index[1:].tolist() == [-1, -1]
        assert index[0] > 0
        assert [each.added for each in writer.writers] == [1, 0, 0]
        with pytest.raises(ValueError, match=r"reset has the shape \(2,\); with 3 rows"):
            writer.add(rows, reset=[True, False])


def test_vector_add_accepts_finals_of_ended_streams_only():
    buffer = buffer_with()
    with buffer.vector_writer(3) as writer:
        done = np.array([False, True, True])
        writer.add({**columns(3), "done": done}, final=finals([1, 2]))
        assert {n: found[0] for n, found in drawn(buffer).items()} == {1: 101.0, 2: 102.0}


def test_vector_with_delayed_resets_records_whole_episodes():
    buffer = buffer_with(done="done")
    lengths = np.array([2, 3, 5])
    at_step, reset = np.zeros(3, int), np.zeros(3, bool)
    with buffer.vector_writer(3) as writer:
        for _ in range(40):
            after = np.where(reset, 0, at_step + 1)
            ended = after == lengths
            rows = {"obs": np.repeat(at_step[:, None], 2, 1), "n": at_step, "reward": np.ones(3), "done": ended}
            writer.add(rows, final={"obs": np.repeat(after[:, None], 2, 1)}, reset=reset)
            at_step, reset = after, ended
    batch = buffer.sample(2000)
    assert (batch.data["next"]["obs"][:, 0] == batch.data["n"] + 1).all()
    assert batch.data["n"].max() == 4
