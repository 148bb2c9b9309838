"""The vector environment of Stable-Baselines3 on our pipes: the same results and errors, and deaths are reported."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

import shmtree

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from counting_env import COUNT, FAIL, HANG, KILL, Counting, compare, environments
from stable_baselines3.common.vec_env import SubprocVecEnv as Standard

from shmtree._environments import pipes
from shmtree.sb3 import SubprocVecEnv


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_results_are_those_of_stable_baselines3(method: str):
    ours, theirs = [each(environments(), start_method=method) for each in (SubprocVecEnv, Standard)]
    compare(ours, theirs)
    assert ours.get_attr("number") == theirs.get_attr("number") == [0, 1, 2]
    for each in (ours, theirs):
        each.set_attr("number", 5, indices=[1])
        each.seed(7)
    np.testing.assert_equal(*[each.reset() for each in (ours, theirs)])
    np.testing.assert_equal(ours.reset_infos, theirs.reset_infos)
    np.testing.assert_equal(*[each.env_method("seen", indices=[0, 1]) for each in (ours, theirs)])
    assert ours.env_is_wrapped(Counting) == theirs.env_is_wrapped(Counting)
    assert repr(ours) == "<SubprocVecEnv, 3 environments>"
    processes = ours.processes
    ours.close()
    theirs.close()
    ours.close()
    assert repr(ours) == "<SubprocVecEnv, closed>"
    assert [process.exitcode for process in processes] == [0] * COUNT


def test_arrays_of_infos_are_writable():
    made = SubprocVecEnv(environments(), start_method="fork")
    made.reset()
    frame = made.step(np.zeros(COUNT, int))[3][0]["frame"]
    frame[:] = 9
    assert made.step(np.zeros(COUNT, int))[3][0]["frame"].max() == 2
    assert frame.min() == 9
    made.close()


def test_signature_adds_workers_to_that_of_stable_baselines3():
    ours, theirs = inspect.signature(SubprocVecEnv).parameters, inspect.signature(Standard).parameters
    assert list(ours.values())[:-2] == list(theirs.values())
    assert list(ours)[-2:] == ["workers", "restart"]


# The standard class raises EOFError too, except with fork: there, the other workers keep the pipe open, and it hangs.
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_error_of_an_environment_raises_eof_error(
    monkeypatch: pytest.MonkeyPatch, method: str, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(pipes, "_END_S", 300.0)  # none is terminated because the machine is slow
    made = SubprocVecEnv(environments(), start_method=method)
    made.reset()
    made.step_async(np.array([0, FAIL, 0]))
    with pytest.raises(EOFError):
        made.step_wait()
    made.close()
    assert "ValueError: environment 1 fails" in capfd.readouterr().err
    assert [process.exitcode for process in made.processes] == [0, 1, 0]


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_killed_worker_is_reported_while_another_one_hangs(monkeypatch: pytest.MonkeyPatch, method: str):
    monkeypatch.setattr(pipes, "_END_S", 0.0)
    made = SubprocVecEnv(environments(), start_method=method)
    made.reset()
    pids = made.env_method("pid")
    made.step_async(np.array([HANG, KILL, 0]))
    with pytest.raises(shmtree.PeerDied, match="the process of environment 1 died") as caught:
        made.step_wait()
    assert caught.value.pids == (pids[1],)
    made.close()
    assert not any(process.is_alive() for process in made.processes)
    assert made.closed


def test_step_after_a_death_raises_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipes, "_END_S", 300.0)
    made = SubprocVecEnv(environments(), start_method="fork")
    made.reset()
    made.processes[2].kill()
    made.processes[2].join()
    with pytest.raises(EOFError) as caught:
        made.step(np.zeros(COUNT, int))
    assert isinstance(caught.value, shmtree.PeerDied)
    made.close()
    assert [process.exitcode for process in made.processes] == [0, 0, -9]


def test_import_error_names_the_missing_package():
    program = "import sys; sys.modules['stable_baselines3'] = None; import shmtree.sb3"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert "ModuleNotFoundError: shmtree.sb3 needs stable-baselines3, which is not installed" in done.stderr
