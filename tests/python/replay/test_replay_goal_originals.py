"""The n-step and hindsight buffers of Stable-Baselines3 and cpprb, compared with the originals for the same seeds."""

from __future__ import annotations

import copy
import multiprocessing as mp
import pickle
from typing import Any

import numpy as np
import pytest

SIZE, ENVIRONMENTS = 40, 2


class _Environments:
    """Computes rewards like a vector of environments with goals."""

    def env_method(self, name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> list[Any]:
        assert (name, indices) == ("compute_reward", [0])
        bonus = np.array([info.get("bonus", 0) for info in infos])
        return [-np.abs(achieved - desired).sum(axis=1) + bonus]


def add_steps(buffers: list[Any], steps: int, seed: int, has_goals: bool) -> None:
    """Adds the same random steps to each buffer. Episodes terminate or are cut off at random."""
    random = np.random.default_rng(seed)
    for number in range(steps):

        def observation() -> Any:
            if not has_goals:
                return random.random((ENVIRONMENTS, 3), np.float32)
            return {k: random.random((ENVIRONMENTS, 2), np.float32) for k in ("achieved_goal", "desired_goal", "obs")}

        done = random.random(ENVIRONMENTS) < 0.2
        infos = [{"TimeLimit.truncated": bool(d and random.random() < 0.5), "bonus": number} for d in done]
        action, reward = random.random((ENVIRONMENTS, 2), np.float32), random.random(ENVIRONMENTS)
        step = (observation(), observation(), action, reward, done, infos)
        for buffer in buffers:
            buffer.add(*copy.deepcopy(step))


def samples_of(buffer: Any, seed: int, count: int = 50) -> list[Any]:
    np.random.seed(seed)
    parts: list[Any] = []
    for part in buffer.sample(count):
        parts += list(part.values()) if isinstance(part, dict) else [part]
    return [None if part is None else part.numpy() for part in parts]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b) if a is not None else b is None
        for a, b in zip(one, other, strict=True)
    )


def spaces_of(has_goals: bool) -> tuple[Any, Any]:
    spaces = pytest.importorskip("gymnasium").spaces
    box = spaces.Box(-1, 1, (2,), np.float32)
    goals = spaces.Dict(dict.fromkeys(("achieved_goal", "desired_goal", "obs"), box))
    return (goals if has_goals else spaces.Box(-1, 1, (3,), np.float32)), box


@pytest.mark.parametrize("n_steps", [1, 3, 7])
def test_n_step_samples_equal_those_of_stable_baselines3(n_steps):
    originals = pytest.importorskip("stable_baselines3.common.buffers")
    from shmtree.replay.sb3 import NStepReplayBuffer

    options: dict[str, Any] = {"n_envs": ENVIRONMENTS, "device": "cpu", "n_steps": n_steps, "gamma": 0.9}
    pair = [cls(SIZE * 2, *spaces_of(False), **options) for cls in (originals.NStepReplayBuffer, NStepReplayBuffer)]
    for part in range(12):
        add_steps(pair, 7, part, False)
        assert are_equal(samples_of(pair[0], part), samples_of(pair[1], part))
    with pytest.raises(NotImplementedError, match="optimize_memory_usage"):
        NStepReplayBuffer(
            SIZE, *spaces_of(False), optimize_memory_usage=True, handle_timeout_termination=False, n_steps=2
        )


def her_pair(**options: Any) -> list[Any]:
    originals = pytest.importorskip("stable_baselines3")
    from shmtree.replay.sb3 import HerReplayBuffer

    given = {"env": _Environments(), "n_envs": ENVIRONMENTS, "device": "cpu", **options}
    return [cls(SIZE * ENVIRONMENTS, *spaces_of(True), **given) for cls in (originals.HerReplayBuffer, HerReplayBuffer)]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("infos", [False, True])
@pytest.mark.parametrize("timeouts", [False, True])
def test_hindsight_samples_equal_those_of_stable_baselines3(strategy, infos, timeouts):
    options = {"goal_selection_strategy": strategy, "copy_info_dict": infos, "handle_timeout_termination": timeouts}
    pair = her_pair(**options)
    for part in range(12):
        add_steps(pair, 13, part, True)
        assert are_equal(samples_of(pair[0], part), samples_of(pair[1], part))
    for buffer in pair:
        with pytest.warns(UserWarning, match="truncated"):
            buffer.truncate_last_trajectory()
    pair += [pickle.loads(pickle.dumps(buffer)) for buffer in pair]
    for buffer in pair[2:]:
        buffer.set_env(_Environments())
    for part in range(5):
        add_steps(pair, 13, part, True)
        original = samples_of(pair[0], part)
        assert all(are_equal(original, samples_of(buffer, part)) for buffer in pair)
    assert (pair[0].dones == pair[1].dones).all()
    assert (pair[0].timeouts == pair[1].timeouts).all()


def _sample_elsewhere(buffer: Any, results: Any, has_added: Any) -> None:
    buffer.set_env(_Environments())
    results.put(samples_of(buffer, 3))
    has_added.wait(60)
    try:
        add_steps([buffer], 1, 0, True)
    except RuntimeError as error:
        results.put(str(error))


def test_another_process_may_only_sample_a_hindsight_buffer():
    _, buffer = her_pair()
    add_steps([buffer], 30, 1, True)
    context = mp.get_context("spawn")
    results, has_added = context.Queue(), context.Event()
    process = context.Process(target=_sample_elsewhere, args=(buffer, results, has_added))
    process.start()
    assert are_equal(results.get(timeout=60), samples_of(buffer, 3))
    add_steps([buffer], 1, 2, True)
    has_added.set()
    assert "another process has added to this buffer: it has 31 steps, and had 30" in results.get(timeout=60)
    process.join(60)


@pytest.mark.parametrize("strategy", ["future", "episode", "random", "final"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_hindsight_rows_equal_those_of_cpprb(strategy, prioritized):
    original = pytest.importorskip("cpprb").HindsightReplayBuffer
    from shmtree.replay.cpprb import HindsightReplayBuffer

    env = {"obs": {"shape": 3}, "act": {"dtype": np.int32}, "next_obs": {"shape": 3}}
    options: dict[str, Any] = {
        "strategy": strategy,
        "prioritized": prioritized,
        "additional_goals": 3,
        "goal_func": lambda state: state[..., :2],
        "goal_shape": 2,
    }
    reward = lambda state, action, goal: -np.abs(state[:, :2] - goal).sum(axis=1) - action[:, 0]  # noqa: E731
    pair = [cls(100, env, 20, reward, **options) for cls in (original, HindsightReplayBuffer)]
    for buffer in pair:
        buffer.rng = np.random.default_rng(7)
    random = np.random.default_rng(1)
    for episode in range(12):
        for step in range(int(random.integers(1, 9))):
            rows = {"obs": random.random(3), "act": step, "next_obs": random.random(3)}
            for buffer in pair:
                buffer.add(**rows)
        for buffer in pair:
            buffer.on_episode_end(np.full(2, episode))
        one, other = (buffer.get_all_transitions() for buffer in pair)
        assert one.keys() == other.keys()
        assert all(one[key].dtype == other[key].dtype and np.array_equal(one[key], other[key]) for key in one)
    if not prioritized:
        with pytest.raises(ValueError, match="without PER"):
            pair[1].get_max_priority()
    for buffer in pair:
        buffer.clear()
        assert buffer.get_stored_size() == 0
        for _ in range(20):
            buffer.add(obs=np.zeros(3), act=0, next_obs=np.zeros(3))
        with pytest.raises(ValueError, match="Exceed Max Episode Length"):
            buffer.add(obs=np.zeros(3), act=0, next_obs=np.zeros(3))
