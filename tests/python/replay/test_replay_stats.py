"""Statistics of a replay buffer."""

from __future__ import annotations

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Prioritized, RateLimit, ReplayBuffer, Uniform

ROW = {"obs": np.zeros(2, np.float32), "n": 0}


def buffer_with(rows: int = 0, **options: object) -> ReplayBuffer:
    buffer = ReplayBuffer(100, example=ROW, **grouped(chunk=1, done=None, **options))
    for number in range(rows):
        buffer.add({**ROW, "n": number})
    return buffer


def test_an_empty_buffer_has_counts_of_zero():
    stats = buffer_with().stats()
    zero = ["rows", "added", "drawn", "samples_per_insert", "added_per_s", "sampled_per_s"]
    zero += ["age_mean", "age_max", "version_lag_mean", "version_lag_max"]
    assert {key: stats[key] for key in zero} == dict.fromkeys(zero, 0)
    assert (stats["capacity"], stats["chunk"]) == (100, 1)
    assert stats["max_bytes"] >= 100 * stats["row_bytes"] > 0


def test_rows_in_chunks_that_are_not_full_are_counted_one_by_one():
    buffer = ReplayBuffer(10_000, example={"x": 0.0})
    assert buffer.stats()["chunk"] == 64
    writers = [buffer.writer() for _ in range(20)]
    for _ in range(5):
        for writer in writers:
            writer.add({"x": 1.0})
    assert buffer.stats()["added"] == 100
    for writer in writers[:10]:
        writer.close()
    assert buffer.stats()["added"] == 100


def test_stats_count_all_rows_ever_added_and_sampled():
    samplers = {"per": Prioritized(), "all": Uniform()}
    buffer = buffer_with(250, sampler=samplers)
    buffer.sample(100, sampler="per")
    buffer.sample(20, sampler="all")
    buffer.sample_sequences(5, 3)
    stats = buffer.stats()
    assert (stats["rows"], stats["added"]) == (100, 250)
    assert stats["samples"] == {"per": 105, "all": 20}
    assert stats["samples_per_insert"] == pytest.approx(125 / 250)


def test_rates_are_since_the_last_call_on_this_object():
    buffer = buffer_with(10)
    assert buffer.stats()["added_per_s"] == 0
    buffer.add(ROW)
    buffer.sample(4)
    stats = buffer.stats()
    assert stats["added_per_s"] > 0
    assert stats["sampled_per_s"] == pytest.approx(4 * stats["added_per_s"])
    stats = buffer.stats()
    assert (stats["added_per_s"], stats["sampled_per_s"]) == (0, 0)


def test_ages_are_those_of_rows_sampled_since_the_last_call():
    buffer = buffer_with(50)
    ages = np.concatenate([buffer.sample(30).age, buffer.sample(7).age])
    stats = buffer.stats()
    assert stats["drawn"] == 37
    assert stats["age_mean"] == pytest.approx(ages.mean())
    assert stats["age_max"] == ages.max()
    batch = buffer.sample_sequences(9, 80)
    stats = buffer.stats()
    assert stats["drawn"] == batch.mask.sum()
    assert stats["age_mean"] == pytest.approx(batch.age[batch.mask].mean())
    assert buffer.stats()["drawn"] == 0


def test_version_lag_is_relative_to_the_newest_known_version():
    buffer = buffer_with()
    with buffer.writer() as writer:
        for version in (-5, 3):
            writer.version = version
            writer.add(ROW)
    versions = buffer.sample(40).version
    stats = buffer.stats()
    assert stats["version_lag_mean"] == pytest.approx((3 - versions).mean())
    assert stats["version_lag_max"] == (3 - versions).max()
    writer.version = 2**63 - 1  # not added yet, but known in this process
    assert buffer.sample(5).version.max() <= 3
    assert buffer.stats()["version_lag_max"] >= 2.0**62


def test_stats_include_the_counts_of_the_rate_limit():
    buffer = buffer_with(rate=RateLimit(samples_per_insert=2.0, min_size=5, error_buffer=100.0))
    for _ in range(20):
        buffer.add(ROW)
    buffer.sample(8)
    buffer.clear()
    for _ in range(6):
        buffer.add(ROW)
    buffer.sample(3)
    stats = buffer.stats()
    assert (stats["inserted"], stats["sampled"]) == (6, 3)
    assert (stats["added"], stats["samples"]) == (26, {"default": 11})


@pytest.mark.parametrize("arena", [False, True])
def test_sequences_are_sampled_into_caller_arrays(arena):
    buffer = buffer_with(60)
    if arena:
        batch = buffer.sample_sequences(6, 4, out="arena")
        assert batch.data["obs"].shape == (6, 4, 2)
    else:
        out = {"obs": np.ones((6, 4, 2), np.float32), "n": np.ones((6, 4), np.int64)}
        batch = buffer.sample_sequences(6, 4, out=out)
        assert batch.data is out
    assert (np.where(batch.mask, batch.data["n"], 0) == batch.data["n"]).all()
    assert (np.diff(batch.data["n"], axis=1)[batch.mask[:, 1:]] == 1).all()
    out = {"obs": np.ones((6, 4, 2), np.float32), "n": np.ones((6, 3), np.int64)}
    with pytest.raises(ValueError, match=r"out\['n'\] is of int64, shape \(6, 3\); the batch needs .* \(6, 4\)"):
        buffer.sample_sequences(6, 4, out=out)
