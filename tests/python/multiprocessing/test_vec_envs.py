"""Vector environments of other libraries run on our pipes if they import our `multiprocessing`."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from shmtree import multiprocessing

gymnasium = pytest.importorskip("gymnasium")

COUNT, STEPS = 3, 5


class Counting(gymnasium.Env):
    """An environment. Its observations contain its number, the episode and the step. An episode has three steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.at = 0

    def seen(self) -> Any:
        return np.full((84, 84, 4), 10 * self.number + self.at, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self.seen(), {"seed": seed}

    def step(self, action: Any) -> Any:
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        self.at += 1
        return self.seen(), float(action), self.at == 3, False, {"at": self.at}


def environments() -> list[Any]:
    return [lambda number=number: Counting(number) for number in range(COUNT)]


def compare(ours: Any, theirs: Any) -> None:
    """Checks that both return the same values, and that our earlier values did not change."""
    kept = []
    for number in range(STEPS):
        actions = np.arange(COUNT) % 3
        said = [each.reset() if number == 0 else each.step(actions) for each in (ours, theirs)]
        np.testing.assert_equal(*said)
        kept.append((said[0], said[1]))
    for was, expected in kept:
        np.testing.assert_equal(was, expected)


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("shared_memory", [False, True])
def test_gymnasium_vector_env_behaves_the_same_on_our_pipes(monkeypatch, shared_memory):
    from gymnasium.vector import AsyncVectorEnv, async_vector_env

    theirs = AsyncVectorEnv(environments(), shared_memory=shared_memory)
    monkeypatch.setattr(async_vector_env, "multiprocessing", multiprocessing)
    ours = AsyncVectorEnv(environments(), shared_memory=shared_memory)
    assert type(ours.parent_pipes[0]).__module__ == "shmtree._ipc.pipe"
    compare(ours, theirs)
    assert ours.call("number") == theirs.call("number") == (0, 1, 2)
    ours.close()
    theirs.close()


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_stable_baselines3_behaves_the_same_on_our_pipes(monkeypatch, method):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    theirs = vec_env.SubprocVecEnv(environments(), start_method=method)
    monkeypatch.setattr(vec_env.subproc_vec_env, "mp", multiprocessing)
    ours = vec_env.SubprocVecEnv(environments(), start_method=method)
    assert type(ours.remotes[0]).__module__ == "shmtree._ipc.pipe"
    compare(ours, theirs)
    assert ours.get_attr("number") == theirs.get_attr("number") == [0, 1, 2]
    ours.close()
    theirs.close()


def test_killed_stable_baselines3_environment_raises_eof_error(monkeypatch):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    monkeypatch.setattr(vec_env.subproc_vec_env, "mp", multiprocessing)
    ours = vec_env.SubprocVecEnv(environments())
    ours.reset()
    ours.step_async(np.array([0, 3, 0]))
    with pytest.raises(EOFError):
        ours.step_wait()
    for remote in ours.remotes:
        remote.close()
    for process in ours.processes:
        process.join(60)
