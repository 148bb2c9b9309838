"""Vector environments of other libraries run on our pipes if they import our `multiprocessing`."""

from __future__ import annotations

import numpy as np
import pytest

from shmtree import multiprocessing

pytest.importorskip("gymnasium")

from counting_env import compare, environments


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
