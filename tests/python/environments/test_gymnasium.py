"""Gymnasium's vector environment on our pipes: the same results and errors, and deaths of workers are reported."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import shmtree

pytest.importorskip("gymnasium")

import counting_env
import gymnasium
from counting_env import COUNT, FAIL, HANG, KILL, Counting, compare, environments
from gymnasium.vector import AsyncVectorEnv as Standard

from shmtree._environments import pipes
from shmtree.gymnasium import AsyncVectorEnv


def error_of(call: Any, *arguments: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:
        call(*arguments)
    return caught.type, str(caught.value)


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("shared_memory", [False, True])
def test_results_are_those_of_gymnasium(method: str, shared_memory: bool):
    ours, theirs = [
        each(environments(), shared_memory=shared_memory, context=method) for each in (AsyncVectorEnv, Standard)
    ]
    compare(ours, theirs)
    assert ours.call("number") == theirs.call("number") == (0, 1, 2)
    for each in (ours, theirs):
        each.set_attr("number", [5, 6, 7])
    np.testing.assert_equal(*[each.reset(seed=7) for each in (ours, theirs)])
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, Standard)
    processes = ours.processes
    ours.close()
    theirs.close()
    assert [process.exitcode for process in processes] == [0] * COUNT
    assert error_of(ours.reset) == error_of(theirs.reset)


def test_other_connections_of_the_library_stay_standard():
    AsyncVectorEnv(environments()).close()
    theirs = Standard(environments())
    assert isinstance(theirs.parent_pipes[0], multiprocessing.connection.Connection)
    theirs.close()


@pytest.mark.filterwarnings("ignore:.*error:UserWarning", "ignore:.*Traceback:UserWarning", "ignore:.*ERROR")
def test_error_of_an_environment_is_raised_as_by_gymnasium():
    results = []
    for each in (AsyncVectorEnv, Standard):
        made = each(environments())
        made.reset()
        results.append(error_of(made.step, np.array([0, FAIL, 0])))
        made.close()
        assert [process.exitcode for process in made.processes] == [0] * COUNT
    assert results == [(ValueError, "environment 1 fails")] * 2


def test_misuse_raises_the_errors_of_gymnasium():
    results = []
    for each in (AsyncVectorEnv, Standard):
        made = each(environments())
        made.reset_async()
        results.append([error_of(made.step_async, np.zeros(COUNT, int)), error_of(made.step_wait)])
        made.reset_wait()
        made.step_async(np.array([0, HANG, 0]))
        results[-1].append(error_of(made.step_wait, 0.5))
        made.close(terminate=True)
    assert results[0] == results[1]
    assert results[0][2][0] is multiprocessing.TimeoutError


@pytest.mark.guarantee("pipe")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_killed_worker_is_reported_while_another_one_hangs(method: str):
    made = AsyncVectorEnv(environments(), context=method)
    made.reset()
    pids = made.call("pid")
    made.step_async(np.array([HANG, KILL, 0]))
    with pytest.raises(shmtree.PeerDied, match="the process of environment 1 died") as caught:
        made.step_wait()
    assert caught.value.pids == (pids[1],)
    assert isinstance(caught.value, EOFError)
    processes = made.processes
    made.close(timeout=0)
    assert not any(process.is_alive() for process in processes)
    assert made.closed


def test_killed_worker_is_reported_by_a_wait_with_a_timeout():
    made = AsyncVectorEnv(environments())
    made.reset()
    made.step_async(np.array([HANG, KILL, 0]))
    with pytest.raises(shmtree.PeerDied):
        made.step_wait(600)
    made.close(terminate=True)


def test_close_after_a_death_closes_the_other_environments(tmp_path: Any):
    made = AsyncVectorEnv([lambda number=number: Closing(number, tmp_path) for number in range(COUNT)])
    made.reset()
    with pytest.raises(shmtree.PeerDied):
        made.step(np.array([0, KILL, 0]))
    made.close(timeout=300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def test_close_after_a_death_kills_a_worker_that_ignores_sigterm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipes, "_SIGTERM_S", 0.1)
    made = AsyncVectorEnv(environments())
    made.reset()
    os.kill(made.call("pid")[2], signal.SIGSTOP)  # SIGTERM waits until the process continues
    with pytest.raises(shmtree.PeerDied):
        made.step(np.array([0, KILL, 0]))
    processes = made.processes
    closing = threading.Thread(target=made.close, kwargs={"timeout": 0}, daemon=True)
    closing.start()
    closing.join(60)
    ended = not closing.is_alive()
    processes[2].kill()
    assert ended
    assert [process.exitcode for process in processes[1:]] == [-signal.SIGKILL] * 2


class Closing(Counting):
    """An environment. In a worker, `close` leaves a file with its number."""

    def __init__(self, number: int, folder: Any) -> None:
        super().__init__(number)
        self.folder = folder

    def close(self) -> None:
        if multiprocessing.parent_process() is not None:
            (self.folder / str(self.number)).touch()


@pytest.mark.skipif("max_concurrency" not in inspect.signature(Standard).parameters, reason="gymnasium has no limit")
def test_worker_killed_while_it_has_a_permit_is_reported():
    made = AsyncVectorEnv(environments(), max_concurrency=1)
    made.reset()
    made.step_async(np.array([KILL, KILL, KILL]))
    with pytest.raises(shmtree.PeerDied):
        made.step_wait()
    made.close(timeout=0)


def test_custom_worker_runs_on_our_pipes():
    made = AsyncVectorEnv(environments(), worker=gymnasium.vector.async_vector_env._async_worker, shared_memory=False)
    assert made.reset()[0].shape == (COUNT, 84, 84, 4)
    made.close()


def test_import_error_names_the_missing_package():
    program = "import sys; sys.modules['gymnasium'] = None; import shmtree.gymnasium"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert "ModuleNotFoundError: shmtree.gymnasium needs gymnasium, which is not installed" in done.stderr


def test_a_constructor_that_starts_workers_otherwise_is_refused():
    class Other:
        def __init__(self) -> None:
            pass

    with pytest.raises(ImportError, match=r"package 9\.0 does not start the processes of Other"):
        pipes.check_constructor(Other, "multiprocessing", "package", "9.0")


KILLED_MAIN = """
import os, signal, sys
from counting_env import environments
from shmtree.gymnasium import AsyncVectorEnv

if __name__ == "__main__":
    made = AsyncVectorEnv(environments(), context=sys.argv[1])
    made.reset()
    print(*made.call("pid"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_exit_when_the_main_process_is_killed(method: str, tmp_path: Any):
    done = counting_env.run_until_killed(KILLED_MAIN, method, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == COUNT
