"""The vector environment of Stable-Baselines3 with several environments per worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shmtree

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from counting_env import FAIL, HANG, KILL, Counting
from sampled_env import makers, same
from stable_baselines3.common.vec_env import SubprocVecEnv as Standard

from shmtree._environments import pipes, pool
from shmtree.sb3 import PooledVecEnv, SubprocVecEnv

COUNT, STEPS = 5, 12


def without_dtypes(step: Any) -> Any:
    """Returns a step with rewards as float64, which the pool always returns."""
    return (step[0], np.asarray(step[1], float), *step[2:])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("space", ["box", "image", "discrete", "dict_of_arrays"])
def test_results_are_those_of_stable_baselines3(space: str, workers: int):
    ours = SubprocVecEnv(makers(COUNT, space), "fork", workers=workers)
    theirs = Standard(makers(COUNT, space), "fork")
    assert isinstance(ours, PooledVecEnv)
    assert len(ours.processes) == workers
    for each in (ours, theirs):
        each.seed(7)
        each.set_options({"key": 1})
    assert same(ours.reset(), theirs.reset())
    for _ in range(STEPS):
        actions = np.full(COUNT, 3)
        assert same(*(without_dtypes(each.step(actions)) for each in (ours, theirs)))
        assert same(list(ours.reset_infos), list(theirs.reset_infos))
    for each in (ours, theirs):
        each.set_attr("bonus", 5, indices=[1])
    assert ours.get_attr("bonus") == theirs.get_attr("bonus") == [0.5, 5, 0.5, 0.5, 0.5]
    assert same(*(each.env_method("last_action", indices=[0, 4]) for each in (ours, theirs)))
    assert same(*(each.env_method("render") for each in (ours, theirs)))
    assert ours.env_is_wrapped(Counting) == theirs.env_is_wrapped(Counting)
    assert (ours.has_attr("bonus"), ours.has_attr("none")) == (True, False)
    ours.close()
    theirs.close()
    assert [process.exitcode for process in ours.processes] == [0] * workers


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_END_S", 0.1)
    monkeypatch.setattr(pipes, "_SIGTERM_S", 0.1)


def environments(**options: Any) -> Any:
    made = SubprocVecEnv([lambda number=number: Counting(number) for number in range(3)], "fork", workers=2, **options)
    made.reset()
    return made


def test_killed_worker_is_reported_while_another_one_hangs(short: None):
    made = environments()
    pid = made.env_method("pid")[2]
    with pytest.raises(shmtree.ConnectionLost, match=f"pid {pid}, of environments 1, 2, was killed") as caught:
        made.step(np.array([HANG, KILL, 0]))
    assert caught.value.pids == (pid,)
    made.close()
    assert not any(process.is_alive() for process in made.processes)


def test_error_of_an_environment_is_raised(short: None):
    made = environments()
    with pytest.raises(ValueError, match="environment 1 fails"):
        made.step(np.array([0, FAIL, 0]))
    made.close()


def test_restarted_environments_are_done_and_marked():
    made = environments(restart=True)
    with pytest.warns(RuntimeWarning, match="of environments 1, 2, .* start anew"):
        observations, rewards, dones, infos = made.step(np.array([1, KILL, 1]))
    assert observations[:, 0, 0, 0].tolist() == [1, 10, 20]
    assert rewards.tolist() == [1, 0, 0]
    assert dones.tolist() == [False, True, True]
    assert [info.get("restarted", False) for info in infos] == [False, True, True]
    assert not any(made.step(np.ones(3, int))[2])
    made.close()


def test_an_environment_can_be_asked_twice():
    made = environments()
    assert made.get_attr("number", indices=[1, 1, 0]) == [1, 1, 0]
    made.close()


def test_wrong_number_of_actions_leaves_the_environments_usable():
    made = environments()
    with pytest.raises(ValueError, match="there are 2 actions for 3 environments"):
        made.step([1, 1])
    made.step([1, 1, 1])
    made.close()


@pytest.mark.parametrize("restart", [False, True])
def test_calls_after_close_start_no_worker(restart: bool):
    made = environments(restart=restart)
    made.close()
    for call in (lambda: made.step(np.ones(3, int)), made.reset, lambda: made.get_attr("number")):
        with pytest.raises(shmtree.ConnectionLost, match="closed"):
            call()
    assert not any(process.is_alive() for process in made.processes)
