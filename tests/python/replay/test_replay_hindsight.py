"""Hindsight: relabelled goals of sampled rows, compared with a list of episodes."""

from __future__ import annotations

import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest

from shmtree.replay import Episodes, Fifo, Hindsight, Limits, Prioritized, ReplayBuffer, Sampling

ROW = {
    "obs": {"observation": 0.0, "achieved_goal": np.zeros(2, np.float32), "desired_goal": np.zeros(2, np.float32)},
    "n": 0,
    "reward": 0.0,
    "terminated": False,
    "truncated": False,
}
ENDS = ("terminated", "truncated", "done")
OWN = -1000.0  # desired goals of the environment are below it, achieved goals above


def observation(achieved: float, desired: float = OWN) -> dict[str, Any]:
    goal = np.float32([achieved, -achieved])
    return {"observation": achieved, "achieved_goal": goal, "desired_goal": np.full(2, desired, np.float32)}


def buffer_of(capacity: int = 1000, chunk: int | None = None, **options: Any) -> ReplayBuffer:
    options = {"episodes": Episodes(next="obs", gamma=0.5), "limits": Limits(chunk=chunk), **options}
    options.setdefault("sampling", Sampling(seed=3))
    return ReplayBuffer(capacity, example=ROW, **options)


def add_episode(writer: Any, first: int, rows: int, end: str | None = "truncated") -> range:
    """Adds rows with the numbers from `first` on. Row n achieves the goal n + 1."""
    for n in range(first, first + rows):
        ends = {key: key == end and n == first + rows - 1 for key in ("terminated", "truncated")}
        row = {"obs": observation(n), "n": n, "reward": 7.0, **ends}
        writer.add(row, final={"obs": observation(n + 1)})
    return range(first, first + rows)


def reward_of(achieved: Any, desired: Any, rows: Any) -> Any:
    assert (rows["next"]["obs"]["achieved_goal"] == achieved).all()
    assert (rows["obs"]["desired_goal"] == desired).all()
    return -np.abs(achieved - desired).sum(1)


def goals_of(batch: Any) -> Any:
    """Returns the numbers of the rows that achieved the goals of the relabelled rows, after checks of every row."""
    data, relabelled = batch.data, batch.goal_index >= 0
    desired = data["obs"]["desired_goal"]
    assert (data["next"]["obs"]["desired_goal"] == desired).all()
    assert (desired[~relabelled] == OWN).all()
    assert (data["reward"][~relabelled] == 7).all()
    assert (desired[relabelled, 0] == -desired[relabelled, 1]).all()
    goal = desired[:, 0].astype(int) - 1
    wanted = -2 * np.abs(data["n"] - goal)
    assert (data["reward"] == wanted)[relabelled].all()
    return goal[relabelled], data["n"][relabelled]


ALLOWED = {
    "future": lambda episode, n: range(n, episode.stop),
    "final": lambda episode, n: range(episode.stop - 1, episode.stop),
    "episode": lambda episode, n: episode,
}


def is_even(counts: Any) -> bool:
    """Chi-square test with a very small level: the statistic has mean k - 1 and variance 2 (k - 1)."""
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return bool(statistic < len(counts) - 1 + 8 * np.sqrt(2 * len(counts)) + 8)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_those_that_the_strategy_allows(strategy, chunk):
    buffer = buffer_of(chunk=chunk)
    writers = [buffer.writer() for _ in range(2)]
    sizes = [1, 2, 5, 70, 9, 64]
    episodes = [add_episode(writers[i % 2], 100 * i, size) for i, size in enumerate(sizes)]
    episode_of = {n: episode for episode in episodes for n in episode}
    batch = buffer.sample(20_000, hindsight=Hindsight(reward_of, strategy))
    goals, rows = goals_of(batch)
    seen: dict[int, list[int]] = {}
    for goal, row in zip(goals.tolist(), rows.tolist(), strict=True):
        assert goal in ALLOWED[strategy](episode_of[row], row)
        seen.setdefault(row, []).append(goal)
    assert len(seen) == sum(sizes)
    for row in (200, 202, 204, 400):
        choices = ALLOWED[strategy](episode_of[row], row)
        counts = np.bincount(np.subtract(seen[row], choices.start), minlength=len(choices))
        assert len(counts) == len(choices)
        assert is_even(counts)
    for writer in writers:
        writer.close()


def test_goal_index_is_that_of_the_row_that_achieved_the_goal():
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 30)
    plain = buffer.sample(2000)
    number = dict(zip(plain.index.tolist(), plain.data["n"].tolist(), strict=True))
    batch = buffer.sample(1000, hindsight=Hindsight(reward_of))
    goals, _ = goals_of(batch)
    assert [number[index] for index in batch.goal_index.tolist() if index >= 0] == goals.tolist()
    with pytest.raises(AttributeError, match="sampled without hindsight="):
        _ = plain.goal_index


@pytest.mark.parametrize("k", [0.0, 1.0, 4.0])
def test_k_rows_are_relabelled_for_each_row_with_its_own_goal(k):
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 30)
    batch = buffer.sample(20_000, hindsight=Hindsight(reward_of, k=k))
    share = k / (k + 1)
    assert abs((batch.goal_index >= 0).mean() - share) <= 8 * np.sqrt(share * (1 - share) / 20_000)


def test_unfinished_episode_counts_up_to_its_last_row():
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 10, end=None)
        assert len(buffer) == 9  # the last row has no successor yet
        for strategy, choices in {"final": {8}, "episode": set(range(9))}.items():
            goals, _ = goals_of(buffer.sample(2000, hindsight=Hindsight(reward_of, strategy)))
            assert set(goals.tolist()) == choices


@pytest.mark.parametrize("chunk", [1, 8])
def test_overwritten_rows_of_an_episode_are_no_goals(chunk):
    buffer = buffer_of(64, chunk)
    with buffer.writer() as writer:
        episode = add_episode(writer, 0, 200)
        present = set(buffer.sample(5000).data["n"].tolist())
        assert 0 < len(present) < 65
        assert max(present) == episode.stop - 1
        goals, _ = goals_of(buffer.sample(5000, hindsight=Hindsight(reward_of, "episode")))
        assert set(goals.tolist()) == present
        goals, rows = goals_of(buffer.sample(5000, hindsight=Hindsight(reward_of, "future")))
        assert set(goals.tolist()) <= present
        assert set(rows.tolist()) == present


def test_goals_are_right_while_rows_are_overwritten():
    buffer = buffer_of(64, 8)
    writer = buffer.writer()
    add_episode(writer, 0, 40)
    ended = threading.Event()

    def add() -> None:
        for first in range(1000, 200_000, 100):
            if ended.is_set():
                return
            add_episode(writer, first, 40)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for strategy in ("future", "final", "episode") * 30:
            goals, rows = goals_of(buffer.sample(200, hindsight=Hindsight(reward_of, strategy)))
            assert (goals // 100 == rows // 100).all()
            if strategy == "future":
                assert (goals >= rows).all()
    finally:
        ended.set()
        thread.join()
    writer.close()


def test_mask_of_the_function_sets_discount_and_terminated():
    def reached(achieved: Any, desired: Any, rows: Any) -> Any:
        at_goal = (achieved == desired).all(1)
        return at_goal.astype(np.float32), at_goal

    for row in (ROW, {**ROW, "done": False}):
        buffer = ReplayBuffer(100, example=row, episodes=Episodes(next="obs", gamma=0.5), sampling=Sampling(seed=1))
        with buffer.writer() as writer:
            for n in range(20):
                ends = {name: name in ("truncated", "done") and n == 19 for name in row if name in ENDS}
                writer.add({"obs": observation(n), "n": n, "reward": 7.0, **ends}, final={"obs": observation(n + 1)})
        batch = buffer.sample(2000, hindsight=Hindsight(reached))
        data, relabelled = batch.data, batch.goal_index >= 0
        at_goal = relabelled & (batch.goal_index == batch.index)
        assert at_goal.any()
        assert (data["terminated"] == at_goal).all()
        assert (data["reward"] == np.where(relabelled, at_goal, 7)).all()
        assert (batch.discount == np.where(at_goal, 0, 0.5)).all()
        if "done" in row:
            assert (data["done"] == (data["truncated"] | at_goal)).all()


def test_priorities_and_order_of_rows_stay_as_without_hindsight():
    buffer = buffer_of(sampling=Sampling({"per": Prioritized(alpha=1.0, eps=0.0), "old": Fifo()}))
    with buffer.writer() as writer:
        index = [
            writer.add(
                {"obs": observation(n), "n": n, "reward": 7.0, "terminated": False, "truncated": n == 9},
                final={"obs": observation(n + 1)},
                priority=float(n == 4),
            )
            for n in range(10)
        ]
    her = Hindsight(reward_of)
    batch = buffer.sample(500, hindsight=her)
    assert set(batch.index.tolist()) == {index[4]}
    assert (batch.weight == 1).all()
    assert set(goals_of(batch)[0].tolist()) == set(range(4, 10))
    assert buffer.sample(10, sampler="old", hindsight=her).data["n"].tolist() == list(range(10))


def test_batch_in_given_arrays_is_relabelled_there():
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 30)
    out = pickle.loads(pickle.dumps(buffer.sample(50).data))
    batch = buffer.sample(50, out=out, hindsight=Hindsight(reward_of))
    assert batch.data is out
    assert len(goals_of(batch)[0])
    assert len(goals_of(buffer.sample(50, out="arena", hindsight=Hindsight(reward_of)))[0])


def test_same_seed_gives_the_same_goals():
    batches = []
    for _ in range(2):
        buffer = buffer_of(sampling=Sampling(seed=5))
        with buffer.writer() as writer:
            add_episode(writer, 0, 30)
        batches.append(buffer.sample(100, hindsight=Hindsight(reward_of)).goal_index.tolist())
    assert batches[0] == batches[1]


@pytest.mark.parametrize(
    ("options", "her", "text"),
    [
        ({"episodes": Episodes(next="obs", n_step=3)}, {}, "hindsight needs n_step=1, but the buffer sums the rewards"),
        ({"episodes": Episodes()}, {}, "hindsight needs the goals that rows achieve: make the buffer with `next`"),
        ({"episodes": Episodes(next="obs", reward=None)}, {}, "hindsight needs one float32 or float64 reward"),
        ({"episodes": Episodes(next="obs", reward="n")}, {}, "hindsight needs one float32 or float64 reward"),
        ({"episodes": Episodes(next="obs", stack={"obs": 2})}, {}, "does not support stacked goals"),
        ({}, {"achieved": "obs/goal"}, 'achieved of Hindsight has "obs/goal", which is not a key of the rows; they'),
        ({}, {"desired": "obs"}, 'desired of Hindsight is "obs", which has 3 columns; it must have one'),
        ({}, {"desired": "obs/observation"}, "must be two leaves of the same dtype and shape"),
        ({}, {"desired": "obs/achieved_goal"}, "must be two leaves of the same dtype and shape"),
    ],
)
def test_buffer_without_what_hindsight_needs_is_refused(options, her, text):
    buffer = buffer_of(**options)
    with pytest.raises(ValueError, match=re.escape(text)):
        buffer.sample(1, timeout=0, hindsight=Hindsight(reward_of, **her))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"reward": 5}, TypeError, "reward is 5; it must be a function"),
        ({"strategy": "past"}, ValueError, "strategy is 'past'; it must be 'future', 'final' or 'episode'"),
        ({"k": -1}, ValueError, "k is -1; it must be finite and not negative"),
        ({"k": "4"}, TypeError, "k is '4'; it must be a number"),
    ],
)
def test_hindsight_refuses_options_outside_their_limits(given, error, text):
    with pytest.raises(error, match=re.escape(text)):
        Hindsight(**{"reward": reward_of, **given})


def test_sample_refuses_another_object_as_hindsight():
    with pytest.raises(TypeError, match="hindsight is 'future'; pass hindsight=Hindsight"):
        buffer_of().sample(1, hindsight="future")  # type: ignore[arg-type]


def test_rewards_of_another_shape_are_refused_with_the_numbers():
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 5)
    her = Hindsight(lambda achieved, desired, rows: np.zeros((len(achieved), 1)), k=1e9)
    with pytest.raises(
        ValueError, match=re.escape("reward of shape (4, 1) and dtype float64; it must have one number for each of")
    ):
        buffer.sample(4, hindsight=her)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda n: (np.zeros(n), np.ones(n, bool), 1), "returned a tuple of 3; it must be (rewards, mask)"),
        (
            lambda n: (np.zeros(n), np.ones(n)),
            "returned a mask of shape (20,) and dtype float64; it must have one bool",
        ),
    ],
)
def test_wrong_results_of_the_reward_function_are_refused(result, text):
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 20)
    with pytest.raises(ValueError, match=re.escape(f"the function of Hindsight {text}")):
        buffer.sample(20, replace=False, hindsight=Hindsight(lambda *args: result(len(args[0])), k=1e9))


def test_exception_of_the_reward_function_passes_through():
    buffer = buffer_of()
    with buffer.writer() as writer:
        add_episode(writer, 0, 5)
    with pytest.raises(ZeroDivisionError):
        buffer.sample(4, hindsight=Hindsight(lambda *_: 1 / 0, k=1e9))
