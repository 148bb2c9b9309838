"""The bench of replay buffers measures the installed libraries, and gives a reason for the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs the checkout")


@pytest.fixture
def results():
    """Yields the name of a file of figures, which is removed after the test."""
    yield "replay-of-a-test"
    (ROOT / "bench" / "results" / "replay-of-a-test.json").unlink(missing_ok=True)


def test_each_workload_is_measured_or_gives_a_reason(results):
    workloads = ["add-small", "add-pixel-50", "sample-small-32-cold", "stack-256", "prioritized-2^16", "writers",
                 "sequences-256x4-500k", "files"]  # fmt: skip
    options = ["--peers", "NumPy", "memcpy", "--rounds=1", "--seconds=0.01", "--scale=0.001", f"--out={results}"]

    done = subprocess.run([sys.executable, "-m", "bench.replay", *workloads, *options], cwd=ROOT, capture_output=True,
                          text=True, timeout=300)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "- NumPy: no priorities (prioritized-2^16)" in done.stdout
    assert "- NumPy: one process only (writers)" in done.stdout
    rows = json.loads((ROOT / "bench" / "results" / f"{results}.json").read_text())["rows"]
    measured = {row["workload"] for row in rows if row["peer"] == "NumPy" and not row["problem"]}
    assert measured == set(workloads) - {"prioritized-2^16", "writers"}
    assert all(row["rate"] > 0 for row in rows if not row["problem"])


def test_a_workload_that_does_not_exist_is_an_error():
    done = subprocess.run([sys.executable, "-m", "bench.replay", "no-such"], cwd=ROOT, capture_output=True, text=True,
                          timeout=100)  # fmt: skip

    assert done.returncode == 1 and "no name matches no-such" in done.stderr


def test_a_run_becomes_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"workload": "add-small", "peer": peer, "problem": "", "rate": rate}
            for peer, rate in (("shmtree", 2.0), ("cpprb", 1.0), ("memcpy", 9.0))]  # fmt: skip
    (tmp_path / "replay.json").write_text(json.dumps({"rows": rows}))

    command = [sys.executable, "-m", "bench.replay.plot", tmp_path / "replay.json", tmp_path / "plot.svg"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "plot.svg").read_text()
