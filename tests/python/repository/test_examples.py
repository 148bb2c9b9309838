"""The examples run. Those of queues print the same with the standard library, after a change of one import line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from starts import OF_THIS_MACHINE

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
IMPORT = "from shmtree import multiprocessing as mp\n"
STANDARD_IMPORT = "import multiprocessing as mp\n"


def output_of(program: Path) -> str:
    command = [sys.executable, "-W", "error", *OF_THIS_MACHINE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("name", ["queue_workers.py", "queue_poll_loop.py"])
def test_multiprocessing_example_prints_the_same_with_shmtree(tmp_path: Path, name: str):
    program = (EXAMPLES / name).read_text()
    standard = tmp_path / name
    standard.write_text(program.replace(IMPORT, STANDARD_IMPORT))
    assert program.count(IMPORT) == 1 and "shmtree" not in standard.read_text()

    ours = output_of(EXAMPLES / name)

    assert len(ours.splitlines()) >= 5
    assert ours == output_of(standard)


def test_unmodified_example_prints_the_same_under_run():
    program = EXAMPLES / "unmodified_workers.py"
    assert "import shmtree" not in program.read_text()
    command = [sys.executable, "-W", "error", "-m", "shmtree", "run", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout == output_of(program) == "200 frames, mean 99.5\n"
    assert "unmodified_workers.py" in ran.stderr


def test_the_workers_of_a_pool_add_into_one_array():
    parts, same, counted = output_of(EXAMPLES / "pool_sums.py").splitlines()
    assert parts == "600 images in 12 parts"
    assert same == "the same as here: True"
    assert counted.endswith(f", {600 * 64 * 64} pixels counted")


def test_a_pipeline_of_spdl_feeds_a_model_that_learns():
    pytest.importorskip("spdl.pipeline", reason="SPDL is not installed (pip install 'shmtree[spdl]')")
    pytest.importorskip("PIL", reason="Pillow is not installed")

    epochs = output_of(EXAMPLES / "spdl_jpeg_pipeline.py").splitlines()

    assert [line.partition(",")[0] for line in epochs] == [f"epoch {number}: 16 batches" for number in range(4)]
    assert int(epochs[-1].split()[-2].rstrip("%")) >= 90


def test_workers_share_one_data_set():
    pytest.importorskip("torch")
    size, counts, grown = output_of(EXAMPLES / "shared_dataset.py").splitlines()
    assert re.fullmatch(r"40000 samples in \d+ MiB of shared memory", size)
    assert counts == "40000 images, 80000 boxes"
    assert grown == "a worker grew by less than 10 MiB: True"


def test_a_network_learns_from_a_data_loader():
    pytest.importorskip("torch")
    epochs = output_of(EXAMPLES / "dataloader_training.py").splitlines()
    right = [int(re.fullmatch(r"epoch \d: (\d+) % right", line)[1]) for line in epochs]
    assert len(right) == 3 and right[-1] > 95


def test_three_processes_train_one_model():
    pytest.importorskip("torch")
    before, after = output_of(EXAMPLES / "hogwild.py").splitlines()
    assert int(before.partition("%")[0]) > 30
    assert int(after.partition("%")[0]) < 10
    assert after.endswith("after [19200, 19200, 19200] samples")


def test_vector_environments_continue_after_a_crash():
    pytest.importorskip("gymnasium")
    assert output_of(EXAMPLES / "vector_envs.py").splitlines() == [
        "restarted: [3, 4, 5]",
        "rows: 339 steps of the pictures: {1}",
    ]


def test_jobs_of_killed_workers_are_done_by_new_ones():
    assert output_of(EXAMPLES / "queue_restarts.py").splitlines() == [
        "2 workers were killed after 8 jobs",
        "sum of the squares: 285",
    ]


def test_actors_to_buffer_example_reports_added_and_sampled_rows():
    pytest.importorskip("gymnasium")
    pytest.importorskip("pygame")
    program = [sys.executable, str(EXAMPLES / "actors_to_buffer.py"), "--seconds=12"]

    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    assert re.search(r"replay buffer +\d+ rows added/s, +\d+ drawn/s", done.stdout)


def test_dqn_example_runs_while_its_actors_are_killed(tmp_path: Path):
    program = [sys.executable, str(EXAMPLES / "dqn_replay.py"), "--minutes=0.2", "--kill-every=2"]

    done = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr
    versions, killed = map(int, re.search(r"solved: (\d+) versions, (\d+) actors killed", done.stdout).groups())
    assert versions > 10 and killed >= 2


WITHOUT_TORCH = """if True:
    import runpy, sys
    sys.modules["torch"] = None  # as if it were not installed
    sys.path.insert(0, sys.argv[1])
    program, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_path(program, run_name="__main__")
"""


@pytest.mark.parametrize("lag", [1, 1000])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_ppo_example_drops_rollouts_only_beyond_the_lag(library: str, lag: int):
    if library == "torch":
        pytest.importorskip("torch")
    start = [] if library == "torch" else ["-c", WITHOUT_TORCH, str(EXAMPLES)]
    program = [sys.executable, *start, str(EXAMPLES / "ppo_workers.py"), "--updates=10", f"--lag={lag}"]

    done = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr
    used, dropped = map(int, re.search(r"(\d+) rollouts used, (\d+) too old", done.stdout).groups())
    assert used == 40
    assert lag == 1 or dropped == 0


def test_video_example_serves_readers_of_every_speed():
    program = [sys.executable, str(EXAMPLES / "video_fanout.py"), "--seconds=1", "--fps=50", "--detecting=0.05"]

    done = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr
    told = re.findall(r"(.+): (\d+) frames, [\d.]+ fps, (\d+) missed", done.stdout)
    frames = {name: (int(count), int(missed)) for name, count, missed in told}
    assert frames["camera"] == frames["recorder"] == (50, 0)
    for name in ("detector that skips", "detector of the last"):
        count, missed = frames[name]
        assert count > 0 and count + missed == 50
