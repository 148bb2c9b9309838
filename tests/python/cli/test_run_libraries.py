"""Programs with other libraries run unmodified under `shmtree run`, on shmtree's queues and pipes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL
from starts import START_METHODS

LIMIT_S = 300
SUPPORT = Path(__file__).parents[1] / "support"
#: Classes of CPython's tests that run here. `test_cpython_queues` runs all of them without `shmtree run`.
CPYTHON_CLASSES = (
    "TestSimpleQueue",
    "TestSubstitution",
    "WithProcessesTestConnection",
    "WithProcessesTestPicklingConnections",
    "WithProcessesTestPoll",
    "WithProcessesTestPool",
    "WithProcessesTestQueue",
)


def run(tmp_path: Path, text: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Runs a script that must succeed. Returns its output and the report."""
    path, report = tmp_path / "program.py", tmp_path / "report.json"
    path.write_text(textwrap.dedent(text))
    ran = subprocess.run(
        [sys.executable, "-m", "shmtree", "run", "--report", str(report), str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, json.loads(report.read_text())


ENVIRONMENT = """
    import sys
    import gymnasium, numpy as np

    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        action_space = gymnasium.spaces.Discrete(4)

        def reset(self, *, seed=None, options=None):
            self.at = 0
            return np.zeros((84, 84, 4), np.uint8), {}

        def step(self, action):
            self.at += 1
            return np.full((84, 84, 4), self.at, np.uint8), float(action), self.at == 5, False, {}
"""


@pytest.mark.parametrize("method", START_METHODS)
def test_gymnasium_vector_environment_runs_unmodified(tmp_path: Path, method: str) -> None:
    pytest.importorskip("gymnasium")
    program = (
        ENVIRONMENT
        + """
    if __name__ == "__main__":
        environments = gymnasium.vector.AsyncVectorEnv([Counting] * 2, shared_memory=False, context=sys.argv[1])
        environments.reset()
        for _ in range(4):
            seen, rewards, *_ = environments.step(np.array([1, 2]))
        print(seen.mean(), rewards.sum(), type(environments.parent_pipes[0]).__module__)
        environments.close()
    """
    )
    out, report = run(tmp_path, program, method)
    assert out.split() == ["4.0", "3.0", "shmtree._run.pipes"]
    assert [row["objects"] for row in report["rows"] if row["kind"] == "Pipe"] == [2]


@pytest.mark.parametrize("method", START_METHODS)
def test_stable_baselines3_vector_environment_runs_unmodified(tmp_path: Path, method: str) -> None:
    pytest.importorskip("stable_baselines3")
    program = (
        ENVIRONMENT
        + """
    if __name__ == "__main__":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        environments = SubprocVecEnv([Counting] * 2, start_method=sys.argv[1])
        environments.reset()
        for _ in range(4):
            seen, rewards, *_ = environments.step(np.array([1, 2]))
        print(seen.mean(), rewards.sum(), type(environments.remotes[0]).__module__)
        environments.close()
    """
    )
    out, report = run(tmp_path, program, method)
    assert out.split() == ["4.0", "3.0", "shmtree._run.pipes"]
    (row,) = report["rows"]
    assert row["via"].rpartition(":")[0].endswith("subproc_vec_env.py")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_training_runs_unmodified(tmp_path: Path, method: str) -> None:
    pytest.importorskip("torch")
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    program = """
    import sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, number):
            return torch.full((3, 32, 32), float(number)), number

    if __name__ == "__main__":
        net = torch.nn.Linear(3 * 32 * 32, 1)
        optimizer = torch.optim.SGD(net.parameters(), 1e-9)
        loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1])
        seen = []
        for images, numbers in loader:
            assert (images[:, 0, 0, 0] == numbers).all()
            loss = ((net(images.flatten(1))[:, 0] - numbers) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += numbers.tolist()
        print(seen == list(range(64)))
    """
    out, report = run(tmp_path, program, method)
    assert out == "True\n"
    rows = [row for row in report["rows"] if row["kind"] == "Queue"]
    assert sum(row["bytes"] for row in rows) > 64 * 3 * 32 * 32 * 4 * 0.8


@pytest.mark.parametrize("backend", ["multiprocessing", "loky"])
def test_joblib_runs_unmodified(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("joblib")
    program = """
    import sys
    import numpy as np
    from joblib import Parallel, delayed

    def scale(array, number):
        return array * number

    if __name__ == "__main__":
        results = Parallel(2, backend=sys.argv[1])(delayed(scale)(np.ones(1000), number) for number in range(6))
        print(sum(result.sum() for result in results))
    """
    out, report = run(tmp_path, program, backend)
    assert out == "15000.0\n"
    if backend == "multiprocessing":
        assert {row["kind"] for row in report["rows"]} == {"Pool pipe"}
    else:  # its queues need parts of the standard ones
        assert all("loky" in note["what"] for note in report["not_replaced"])
        assert report["not_replaced"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", START_METHODS)
def test_cpythons_queue_tests_pass_under_run(tmp_path: Path, method: str) -> None:
    if not (importlib.util.find_spec("test") and importlib.util.find_spec("test._test_multiprocessing")):
        pytest.skip("this Python lacks its test package")
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    program = str(SUPPORT / "cpython_queues.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])}
    listed = subprocess.run([sys.executable, program, "list"], env=env, capture_output=True, text=True, check=True)
    tests = [line.split()[1] for line in listed.stdout.splitlines() if line.split()[0] == method]
    chosen = [test for test in tests if test.startswith(CPYTHON_CLASSES)]
    assert len(chosen) > 30

    ran = subprocess.run(
        [sys.executable, "-m", "shmtree", "run", program, "run", method, str(tmp_path / "report"), *chosen],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
    )

    assert ran.returncode == 0, ran.stderr
    entries = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert [entry for entry in entries if entry["wrong"]] == []
    assert {entry["test"] for entry in entries} == set(chosen)
