"""Options that may change when a saved replay buffer is loaded, and the state of its rate limiter."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Episodes, Lifo, Limits, Prioritized, RateLimit, ReplayBuffer, Sampling

LIMIT = RateLimit(samples_per_insert=2.0, min_size=10, error_buffer=12.0)


def saved(folder: Path, rows: int = 15, drawn: int = 8, **options: Any) -> Path:
    buffer = ReplayBuffer(100, example={"n": 0, "reward": 0.0}, **grouped(chunk=1, **options))
    for number in range(rows):
        buffer.add({"n": number, "reward": 1.0})
    if drawn:
        buffer.sample(drawn)
    buffer.save(folder / "saved")
    return folder / "saved"


def counts(buffer: ReplayBuffer) -> tuple[int, int]:
    stats = buffer.stats()
    return stats["inserted"], stats["sampled"]


def test_load_continues_the_counts_of_the_rate_limit(tmp_path):
    path = saved(tmp_path, rate=LIMIT)
    buffer = ReplayBuffer.load(path)
    assert counts(buffer) == (15, 8)
    buffer.sample(14, timeout=0)  # 2 x 15 - 22 is the minimum of 20 - 12
    text = "the rate limit allows 0 of 1 samples until more rows are added: 15 were added and 22 sampled"
    with pytest.raises(queue.Empty, match=text):
        buffer.sample(1, timeout=0)
    again = ReplayBuffer.load(path, capacity=12)
    assert (counts(again), len(again)) == ((15, 8), 12)


def test_rate_limit_counts_survive_a_second_save_and_load(tmp_path):
    first = ReplayBuffer.load(saved(tmp_path, rate=LIMIT))
    first.add({"n": 15, "reward": 1.0})
    first.save(tmp_path / "again")
    assert counts(ReplayBuffer.load(tmp_path / "again")) == (16, 8)


@pytest.mark.parametrize("before", [LIMIT, None])
def test_new_rate_limit_starts_where_neither_side_waits(tmp_path, before):
    path = saved(tmp_path, rate=before, drawn=3)
    buffer = ReplayBuffer.load(path, limits=Limits(rate=RateLimit(samples_per_insert=4.0, min_size=5)))
    assert counts(buffer) == (15, 40)
    buffer.add({"n": 15, "reward": 1.0}, timeout=0)
    buffer.sample(4, timeout=0)
    assert counts(ReplayBuffer.load(path, limits=Limits(rate=RateLimit(samples_per_insert=4.0, min_size=50)))) == (
        15,
        0,
    )


def test_load_can_remove_the_rate_limit(tmp_path):
    buffer = ReplayBuffer.load(saved(tmp_path, rate=LIMIT), limits=Limits())
    assert "inserted" not in buffer.stats()
    assert len(buffer.sample(500, timeout=0)) == 500


def test_load_rejects_an_invalid_rate_limit(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(TypeError, match="rate is 8.0; it must be a RateLimit, or None"):
        ReplayBuffer.load(path, limits=Limits(rate=8.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_size is 1000; it must be from 1 to the capacity, 100"):
        ReplayBuffer.load(path, limits=Limits(rate=RateLimit(1.0, min_size=1000)))


def test_load_applies_the_new_gamma_to_rewards(tmp_path):
    path = saved(tmp_path, n_step=3, gamma=1.0, done=None)
    assert set(ReplayBuffer.load(path).sample(100).data["reward"].tolist()) == {3.0}
    batch = ReplayBuffer.load(path, episodes=Episodes(n_step=3, gamma=0.5, done=None)).sample(100)
    assert np.allclose(batch.data["reward"], 1.75)
    assert np.allclose(batch.discount, 0.125)
    with pytest.raises(ValueError, match="gamma is -1; it must be finite and not negative"):
        ReplayBuffer.load(path, episodes=Episodes(n_step=3, gamma=-1, done=None))


def test_load_with_a_seed_alone_keeps_the_samplers(tmp_path):
    path = saved(tmp_path, sampler={"per": Prioritized(alpha=1.0), "new": Lifo()})
    first, second = (ReplayBuffer.load(path, sampling=Sampling(seed=seed)) for seed in (3, 3))
    assert list(first._spec.samplers) == ["per", "new"]
    assert (first.sample(20).index == second.sample(20).index).all()


FIXED: dict[str, Any] = {"next": "n", "n_step": 3, "stack": {"n": 4}, "stack_padding": "first", "done": None}


def test_load_accepts_fixed_options_with_their_saved_values(tmp_path):
    path = saved(tmp_path, drawn=0, **FIXED)
    fixed = Episodes(**FIXED)
    assert len(ReplayBuffer.load(path, example={"n": 1, "reward": 2.0}, episodes=fixed)) == 12
    assert len(ReplayBuffer.load(path, columns={"n": np.int64, "reward": np.float32}, episodes=fixed)) == 12


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n_step": 1}, r"n_step is 1, but the saved buffer has 3; load\(\) cannot change it"),
        ({"next": ()}, r"next is \(\), but the saved buffer has \[\"row\['n'\]\"\]"),
        ({"next": ["n", "reward"]}, r"next is \('n', 'reward'\), but the saved buffer has"),
        ({"stack": None}, r"stack is None, but the saved buffer has \{\"row\['n'\]\": 4\}"),
        ({"stack": {"n": 2}}, r"stack is \{'n': 2\}, but"),
        ({"stack_padding": "zeros"}, r"stack_padding is 'zeros', but the saved buffer has 'first'"),
        ({"done": "n"}, r"done is 'n', but the saved buffer has None"),
        ({"reward": None}, r"reward is None, but the saved buffer has \"row\['reward'\]\""),
        (
            {"example": {"n": 0}},
            r"example is row\['n'\]: int64 \(\), but the saved buffer has row\['n'\]: int64 \(\), row",
        ),
        ({"n_step": 0}, "n_step is 0; it must be at least 1"),
        ({"next": "no"}, 'next has "no", which is not a key of the rows'),
    ],
)
def test_load_rejects_fixed_options_with_other_values(tmp_path, given, text):
    path = saved(tmp_path, drawn=0, **FIXED)
    with pytest.raises(ValueError, match=text):
        ReplayBuffer.load(path, **grouped(**{**FIXED, **given}))


def test_load_with_done_none_allows_sequences(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(ValueError, match="sample_sequences needs to know where episodes end"):
        ReplayBuffer.load(path).sample_sequences(1, 2)
    assert ReplayBuffer.load(path, episodes=Episodes(done=None)).sample_sequences(1, 2).mask.shape == (1, 2)


def test_load_names_an_unknown_option(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_rows'"):
        ReplayBuffer.load(saved(tmp_path), max_rows=5)
