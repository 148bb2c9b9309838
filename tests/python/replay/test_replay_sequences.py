"""Sequences that start at rows which a sampler chooses."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Fifo, Lifo, MaxPriority, Prioritized, RateLimit, ReplayBuffer, Uniform

SAMPLERS = {"per": Prioritized(alpha=1, beta=1, eps=0), "all": Uniform(), "old": Fifo(), "new": Lifo()}


def filled(rows: int = 40, **options: Any) -> ReplayBuffer:
    """Returns a buffer with episodes of 10 rows, numbered by place. Row 15 has the priority of all others together."""
    buffer = ReplayBuffer(
        100, example={"n": 0, "done": False}, **grouped(**{"sampler": SAMPLERS, "chunk": 1, **options})
    )
    for n in range(rows):
        buffer.add({"n": n, "done": n % 10 == 9}, priority=rows - 1 if n == 15 else 1.0)
    return buffer


def test_sequence_starts_follow_priorities_and_report_them():
    batch = filled(seed=3).sample_sequences(2000, 3, sampler="per")
    first = batch.data["n"][:, 0]
    assert 800 < (first == 15).sum() < 1200
    chances = np.where(first == 15, 0.5, 0.5 / 39)[:, None] * np.ones((1, 3))
    np.testing.assert_allclose(batch.probability, chances, rtol=1e-6)
    np.testing.assert_allclose(batch.weight, np.where(chances == 0.5, 1 / 39, 1), rtol=1e-5)
    assert (batch.priority == np.where(chances == 0.5, 39, 1)).all()
    steps = np.diff(batch.data["n"], axis=1)[batch.mask[:, 1:]]
    assert (steps == 1).all()
    assert (batch.mask.sum(1) == np.minimum(10 - first % 10, 3)).all()


def test_sequence_weights_follow_beta_and_the_whole_buffer():
    buffer = filled()
    batch = buffer.sample_sequences(50, 2, sampler="per", beta=0.5, weights="buffer")
    np.testing.assert_allclose(batch.weight, np.where(batch.priority == 39, 39**-0.5, 1), rtol=1e-5)
    assert (buffer.sample_sequences(50, 2).weight == 1).all()  # without a sampler, all rows are equally likely
    assert buffer.stats()["samples"] == {"per": 50 + 50, "all": 0, "old": 0, "new": 0}


@pytest.mark.parametrize("sampler", [None, *SAMPLERS])
def test_sequences_without_replacement_start_at_different_rows(sampler):
    buffer = filled()
    options: dict[str, Any] = {"sampler": sampler, "replace": False, "timeout": 30}
    first = buffer.sample_sequences(40, 5, **options).data["n"][:, 0]
    assert sorted(first.tolist()) == list(range(40))
    whole = buffer.sample_sequences(24, 5, partial="refuse", **options)
    assert whole.mask.all()
    assert sorted(whole.data["n"][:, 0].tolist()) == [n for n in range(40) if n % 10 <= 5]
    with pytest.raises(ValueError, match="different rows"):
        buffer.sample_sequences(25, 5, partial="refuse", **options)


def test_sequences_come_in_the_samplers_order():
    buffer = filled(sampler={**SAMPLERS, "most": MaxPriority()})
    for sampler, expected in (("old", [0, 1, 2]), ("new", [39, 38, 37]), ("most", [15])):
        batch = buffer.sample_sequences(len(expected), 2, sampler=sampler, replace=False)
        assert batch.data["n"][:, 0].tolist() == expected
    whole = buffer.sample_sequences(3, 4, sampler="new", partial="refuse", replace=False)
    assert whole.data["n"][:, 0].tolist() == [36, 35, 34]


def test_exhausted_rows_start_no_sequence():
    buffer = filled(sampler={"once": Uniform(max_times=1)})
    firsts = [buffer.sample_sequences(10, 3, sampler="once", timeout=30).data["n"][:, 0] for _ in range(4)]
    assert sorted(np.concatenate(firsts).tolist()) == list(range(40))
    with pytest.raises(queue.Empty):
        buffer.sample_sequences(1, 3, sampler="once", timeout=0)


def test_failed_sample_of_sequences_uses_up_no_rows():
    buffer = filled(sampler={"once": Uniform(max_times=1)})
    for _ in range(3):
        with pytest.raises(queue.Empty):
            buffer.sample_sequences(25, 5, sampler="once", partial="refuse", timeout=0)
    firsts = buffer.sample_sequences(24, 5, sampler="once", partial="refuse", timeout=30).data["n"][:, 0]
    assert sorted(firsts.tolist()) == [n for n in range(40) if n % 10 <= 5]


def test_sequences_count_as_samples_under_a_rate_limit():
    limit = RateLimit(samples_per_insert=1, min_size=1, error_buffer=60)
    buffer = filled(rate=limit)
    buffer.sample_sequences(50, 5, sampler="per", timeout=30)
    assert buffer.stats()["sampled"] == 50
    with pytest.raises(queue.Empty):
        buffer.sample_sequences(60, 5, sampler="per", timeout=0)
    assert buffer.stats()["sampled"] == 50


def test_sample_sequences_rejects_unknown_sampler_and_weights():
    with pytest.raises(ValueError, match="sampler is 'no'; it must be one of 'per', 'all', 'old', 'new'"):
        filled().sample_sequences(1, 2, sampler="no")
    with pytest.raises(ValueError, match="weights"):
        filled().sample_sequences(1, 2, weights="no")  # type: ignore[arg-type]
