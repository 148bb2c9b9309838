"""Workers of several environments that are killed, stopped, raise errors or hang: errors, restarts and the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import select
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
from counting_env import FAIL, HANG, KILL, Counting

from shmtree._environments import pipes, pool
from shmtree.gymnasium import AsyncVectorEnv

COUNT = 5  # environments 0 and 1 in the first worker, and the others in the second


def makers() -> list[Any]:
    return [lambda number=number: Counting(number) for number in range(COUNT)]


def actions(**given: int) -> Any:
    """Returns actions with these values: ``e2=KILL`` for environment 2. The others are 1."""
    found = np.ones(COUNT, int)
    for name, action in given.items():
        found[int(name[1:])] = action
    return found


@contextlib.contextmanager
def environments(**options: Any) -> Any:
    """Environments after a reset. All processes must have ended when they were closed."""
    made = AsyncVectorEnv(makers(), workers=2, **options)
    made.reset()
    before = list(made.processes)
    yield made
    made.close()
    assert not any(process.is_alive() for process in [*before, *made.processes])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that do not end are terminated at once, and killed soon after that."""
    monkeypatch.setattr(pool, "_END_S", 0.1)
    monkeypatch.setattr(pipes, "_SIGTERM_S", 0.1)


def said(pid: int, first: int, last: int, what: str) -> str:
    return f"the worker with pid {pid}, of environments {first}{' to ' if last - first > 1 else ', '}{last}, {what}"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_killed_worker_is_reported_while_another_one_hangs(method: str, short: None):
    with environments(context=method) as made:
        pid = made.call("pid")[3]
        with pytest.raises(shmtree.ConnectionLost) as caught:
            made.step(actions(e0=HANG, e3=KILL))
        assert str(caught.value) == said(pid, 2, 4, "was killed by SIGKILL")
        assert caught.value.pids == (pid,)
        for call in (lambda: made.step(actions()), made.reset, lambda: made.get_attr("number")):
            with pytest.raises(shmtree.ConnectionLost, match=f"pid {pid}"):
                call()


@pytest.mark.parametrize("call", [lambda made: made.reset(), lambda made: made.get_attr("number")])
def test_worker_that_was_killed_earlier_is_reported_by_any_call(call: Any):
    with environments() as made:
        made.processes[1].kill()
        made.processes[1].join()
        with pytest.raises(shmtree.ConnectionLost, match="of environments 2 to 4, was killed by SIGKILL"):
            call(made)


def test_death_is_reported_while_results_of_others_arrive(short: None):
    with environments() as made:
        made.send(actions(), range(COUNT))
        made.recv()
        os.kill(made.processes[1].pid, signal.SIGKILL)
        with pytest.raises(shmtree.ConnectionLost, match="of environments 2 to 4, was killed by SIGKILL"):
            step_first(made)


def step_first(made: Any) -> None:
    """Steps environment 0 until there is an error."""
    while True:
        made.send(np.array([1]), [0])
        made.recv(1)


def test_error_of_an_environment_names_the_worker_in_its_cause(short: None):
    with environments() as made:
        pid = made.call("pid")[2]
        with pytest.raises(ValueError, match="environment 2 fails") as caught:
            made.step(actions(e2=FAIL))
        cause = str(caught.value.__cause__)
        assert said(pid, 2, 4, "ended after ValueError: environment 2 fails") in cause
        assert "in step" in cause  # its traceback
        with pytest.raises(shmtree.ConnectionLost, match="ended after ValueError"):
            made.step(actions())


def test_timeout_names_the_worker_and_its_environments(short: None):
    with environments() as made:
        pid = made.call("pid")[4]
        made.step_async(actions(e4=HANG))
        text = re.escape(said(pid, 2, 4, "did not answer in time"))
        with pytest.raises(multiprocessing.TimeoutError, match=text):
            made.step_wait(timeout=0.3)
        for call in (lambda: made.step(actions()), made.reset, lambda: made.get_attr("number")):
            with pytest.raises(multiprocessing.TimeoutError, match=text):
                call()


def test_stopped_worker_is_reported_as_stopped_and_can_continue():
    with environments() as made:
        pid = made.processes[0].pid
        os.kill(pid, signal.SIGSTOP)
        made.step_async(actions())
        with pytest.raises(multiprocessing.TimeoutError, match=f"pid {pid}, .* because it is stopped"):
            made.step_wait(timeout=0.3)
        os.kill(pid, signal.SIGCONT)
        while True:  # until the late answer is there
            with contextlib.suppress(multiprocessing.TimeoutError):
                made.reset()
                break
        assert made.step(actions())[0][:, 0, 0, 0].tolist() == [10 * number + 1 for number in range(COUNT)]


def test_environments_can_be_received_after_a_timeout():
    with environments() as made:
        os.kill(made.processes[0].pid, signal.SIGSTOP)
        made.send(actions(), range(COUNT))
        assert sorted(made.recv(3)[4]["env_id"]) == [2, 3, 4]
        with pytest.raises(multiprocessing.TimeoutError, match="environments 0, 1, did not answer"):
            made.recv(timeout=0.3)
        os.kill(made.processes[0].pid, signal.SIGCONT)
        assert sorted(made.recv()[4]["env_id"]) == [0, 1]


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"terminate": True}, {}])
def test_close_ends_after_a_step_that_timed_out(options: Any, stop: bool, short: None):
    with environments() as made:
        if stop:
            os.kill(made.processes[1].pid, signal.SIGSTOP)
        made.step_async(actions(e2=HANG))
        with pytest.raises(multiprocessing.TimeoutError):
            made.step_wait(timeout=0.1)
        made.close(**options)
        assert made.closed
    assert made.processes[1].exitcode in (-signal.SIGKILL, -signal.SIGTERM)


def test_forked_child_leaves_workers_of_its_parent_alone():
    with environments() as made:
        child = multiprocessing.get_context("fork").Process(target=made.close, kwargs={"terminate": True})
        child.start()
        child.join()
        assert child.exitcode == 0
        assert made.step(actions())[0][:, 0, 0, 0].tolist() == [10 * number + 1 for number in range(COUNT)]


def test_close_closes_the_environments(tmp_path: Any):
    made = AsyncVectorEnv([lambda number=number: Closing(number, tmp_path) for number in range(COUNT)], workers=2)
    made.reset()
    with pytest.raises(shmtree.ConnectionLost):
        made.step(actions(e0=KILL))
    made.close(timeout=300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "4"]


class Closing(Counting):
    """An environment. In a worker, `close` leaves a file with its number."""

    def __init__(self, number: int, folder: Any) -> None:
        super().__init__(number)
        self.folder = folder

    def close(self) -> None:
        if multiprocessing.parent_process() is not None:
            (self.folder / str(self.number)).touch()


# --- Interrupts


class Interrupted:
    """A sender or receiver, of which the next call is interrupted by Ctrl-C: before a put, and after a get."""

    def __init__(self, end: Any) -> None:
        self.end, self.is_due = end, True

    def interrupt(self) -> None:
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt

    def put(self, message: Any) -> None:
        self.interrupt()
        self.end.put(message)

    def get(self, timeout: float) -> Any:
        message = self.end.get(timeout=timeout)
        self.interrupt()
        return message

    def close(self) -> None:
        self.end.close()


@pytest.mark.parametrize("end", ["commands", "answers"])
def test_calls_after_an_interrupt_get_answers_of_their_own(end: str):
    calls = [lambda made: made.step(actions()), lambda made: made.reset(), lambda made: made.get_attr("number")]
    with environments() as made:
        for interrupted in calls:
            member = made._pool._members[0]
            setattr(member, end, Interrupted(getattr(member, end)))
            with pytest.raises(KeyboardInterrupt):
                interrupted(made)
            made.reset()
            assert made.step(actions())[0][:, 0, 0, 0].tolist() == [10 * number + 1 for number in range(COUNT)]


def test_recv_reports_a_result_that_an_interrupt_lost():
    with environments() as made:
        made.send(actions(), range(COUNT))
        done = made._pool._done
        made._pool._done = Interrupted(done)
        with pytest.raises(KeyboardInterrupt):
            made.recv()
        made._pool._done = done
        with pytest.raises(RuntimeError, match="interrupted call lost .* of environment [0-4]; reset"):
            made.recv()
        made.reset()
        made.send(actions(), range(COUNT))
        assert sorted(made.recv()[4]["env_id"]) == list(range(COUNT))


# --- Restarts


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("action", [KILL, FAIL])
def test_restarted_environments_are_reset_and_marked(action: int, mode: str):
    with environments(restart=True, autoreset_mode=mode) as made:
        made.step(actions())
        pid = made.processes[1].pid
        with pytest.warns(RuntimeWarning, match=f"pid {pid}, of environments 2 to 4, .* start anew"):
            observations, rewards, terminated, truncated, infos = made.step(actions(e3=action))
        assert observations[:, 0, 0, 0].tolist() == [2, 12, 20, 30, 40]
        assert rewards.tolist() == [1, 1, 0, 0, 0]
        assert not terminated.any()
        assert truncated.tolist() == [False, False, True, True, True]
        assert infos["restarted"].tolist() == infos["_restarted"].tolist() == truncated.tolist()
        if mode == "SameStep":
            assert [each is not None for each in infos["final_obs"]] == truncated.tolist()
        assert made.processes[1].pid != pid
        if mode == "Disabled":
            made.reset(options={"reset_mask": truncated})
        observations, *_, infos = made.step(actions())
        after = {"NextStep": [20, 30, 40], "SameStep": [21, 31, 41], "Disabled": [21, 31, 41]}[mode]
        assert observations[2:, 0, 0, 0].tolist() == after
        assert "restarted" not in infos


def test_restart_of_a_worker_that_hangs():
    with environments(restart=True) as made:
        made.step_async(actions(e4=HANG))
        with pytest.warns(RuntimeWarning, match="did not answer in time"):
            infos = made.step_wait(timeout=2)[4]
        assert infos["restarted"].tolist()[2:] == [True] * 3
        made.reset()


def test_restart_during_send_and_recv():
    with environments(restart=True) as made:
        made.send(actions()[:4], [0, 1, 2, 3])
        made.recv()
        made.send(np.array([1, KILL]), [1, 3])
        with pytest.warns(RuntimeWarning, match="start anew"):
            found = made.recv()
        by_number = dict(zip(found[4]["env_id"].tolist(), found[4]["restarted"].tolist(), strict=True))
        assert by_number == {1: False, 3: True}
        made.send(actions()[:3], [0, 2, 4])  # the other environments of the lost worker are reported at their next step
        found = made.recv()
        by_number = dict(zip(found[4]["env_id"].tolist(), found[4]["restarted"].tolist(), strict=True))
        assert by_number == {0: False, 2: True, 4: True}


def test_reset_is_repeated_in_a_new_worker():
    with environments(restart=True) as made:
        made.processes[0].kill()
        made.processes[0].join()
        with pytest.warns(RuntimeWarning, match="start anew"):
            _, infos = made.reset(seed=10)
        assert infos["seed"].tolist() == [10, 11, 12, 13, 14]
        assert infos["restarted"].tolist() == [True, True, False, False, False]


def test_call_that_a_death_interrupts_raises_after_the_restart():
    with environments(restart=True) as made:
        made.processes[0].kill()
        made.processes[0].join()
        with pytest.warns(RuntimeWarning, match="start anew"), pytest.raises(shmtree.ConnectionLost):
            made.get_attr("number")
        assert made.get_attr("number") == (0, 1, 2, 3, 4)
        assert made.step(actions())[4]["restarted"].tolist() == [True, True, False, False, False]


def test_worker_that_fails_at_once_is_not_restarted_again(tmp_path: Any):
    mark = tmp_path / "broken"

    def make() -> Any:
        if mark.exists():
            raise RuntimeError("cannot start")
        return Counting(0)

    made = AsyncVectorEnv([make] * 2, workers=1, restart=True)
    made.reset()
    mark.touch()
    made.processes[0].kill()
    with pytest.warns(RuntimeWarning, match="start anew"), pytest.raises(RuntimeError, match="cannot start"):
        made.step(np.ones(2, int))
    made.close()


def test_close_in_another_thread_starts_no_worker():
    made = AsyncVectorEnv(makers(), workers=2, restart=True)
    made.reset()
    made.step_async(actions(e0=HANG))

    def wait() -> None:
        with contextlib.suppress(shmtree.ConnectionLost):
            made.step_wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    made.close(timeout=0.1)
    waiting.join()
    assert not any(process.is_alive() for process in made.processes)


def test_error_of_a_constructor_is_raised():
    def make() -> Any:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("cannot start")
        return Counting(0)

    with pytest.raises(RuntimeError, match="cannot start") as caught:
        AsyncVectorEnv([make] * 2, workers=1, context="fork")
    assert "of environments 0, 1, ended after RuntimeError" in str(caught.value.__cause__)


KILLED_MAIN = """
import os, signal, sys
from counting_env import HANG, environments
from shmtree.gymnasium import AsyncVectorEnv

if __name__ == "__main__":
    made = AsyncVectorEnv(environments(), workers=2, context=sys.argv[1])
    made.reset()
    made.step_async([0, 0, HANG])
    print(*made.processes, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


KILLED_BESIDE_A_CHILD = """
import os, signal
from counting_env import HANG, environments
from shmtree.gymnasium import AsyncVectorEnv

made = AsyncVectorEnv(environments(), workers=2, context="fork")
made.reset()
made.step_async([0, 0, HANG])
if (child := os.fork()) == 0:
    signal.pause()
print(child, *(process.pid for process in made.processes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_exit_although_another_child_is_left():
    paths = os.pathsep.join([os.path.dirname(counting_env.__file__), os.environ.get("PYTHONPATH", "")])
    command, env = [sys.executable, "-c", KILLED_BESIDE_A_CHILD], {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as main:
        assert main.stdout is not None
        child, *workers = map(int, main.stdout.readline().split())
        try:
            main.wait()
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    assert select.select([os.pidfd_open(worker)], [], [], 60)[0]
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_exit_when_the_main_process_is_killed(method: str, tmp_path: Any):
    done = counting_env.run_until_killed(KILLED_MAIN, method, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout
