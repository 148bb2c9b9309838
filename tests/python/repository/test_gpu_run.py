"""tests/gpu/run reports which parts ran and which could not, and leaves no process of a part that hangs.

The bench runs on the CPU here, which needs only torch.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "gpu"
pytestmark = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs the checkout")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("parts")


def run(parts: Any, folder: Path, program: str, seconds: float = 60) -> Any:
    return parts.run("a part", ["sh", "-c", program], seconds, folder / "log", dict(os.environ))


def test_a_part_passes_or_fails_with_its_program(parts: Any, tmp_path: Path) -> None:
    assert run(parts, tmp_path, "exit 0").verdict == "passed"
    failed = run(parts, tmp_path, "exit 3")
    assert failed.verdict == "failed" and "3" in failed.why and failed.is_bad


def test_part_that_cannot_run_reports_the_reason(parts: Any, tmp_path: Path) -> None:
    skipped = run(parts, tmp_path, "echo of this; echo no GPU; exit 77")
    assert (skipped.verdict, skipped.why, skipped.is_bad) == ("skipped", "no GPU", False)


def test_a_part_that_hangs_is_ended_with_all_its_processes(parts: Any, tmp_path: Path) -> None:
    ended = run(parts, tmp_path, "sleep 1000 & echo $$; wait", seconds=1)
    assert ended.verdict == "ended" and ended.is_bad
    session = (tmp_path / "log").read_text().strip()
    assert ended.why.endswith(session) and parts._of_session(int(session)) == []


def test_processes_that_a_part_leaves_are_ended(parts: Any, tmp_path: Path) -> None:
    assert run(parts, tmp_path, "sleep 1000 & echo $$").verdict == "passed"
    assert parts._of_session(int((tmp_path / "log").read_text())) == []


TESTS = """<testsuites><testsuite name="pytest">
<testcase classname="tests.python.test_a" name="test_one[real]"><skipped message="no GPU">a.py:3</skipped></testcase>
{more}</testsuite></testsuites>"""


def test_part_with_only_skipped_tests_is_skipped(parts: Any, tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    result = parts.Result("a part", "passed")
    report.write_text(TESTS.format(more=""))
    parts.read_tests(result, report)
    assert result.verdict == "skipped" and result.skips == {"no GPU": ["test_one[real]"]}

    result = parts.Result("a part", "passed")
    report.write_text(TESTS.format(more='<testcase classname="tests.python.test_a" name="test_two"/>'))
    parts.read_tests(result, report)
    assert result.verdict == "passed" and result.counts == {"passed": 1, "failed": 0, "skipped": 1}


def test_all_parts_are_skipped_and_named_if_nothing_can_run(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run"), "--python", "/no/such/python", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 77, done.stderr
    written = json.loads((tmp_path / "gpu.json").read_text())
    names = [part["part"] for part in written["parts"]]
    assert names[0] == "build" and {"driver", "tensors", "arrays", "pinned", "sanitizer", "fake"} < set(names)
    assert {part["verdict"] for part in written["parts"]} == {"skipped"}
    table = (tmp_path / "gpu.md").read_text()
    assert all(f"| {name} | skipped |" in table and name in done.stdout for name in names)


def test_an_unknown_part_is_an_error() -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "run"), "nothing"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "unknown parts nothing" in done.stderr


@pytest.mark.parametrize("name", ["queues", "copies", "loader", "overlap"])
def test_gpu_bench_writes_its_measurements(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.gpu", name, "--device=cpu", "--seconds=0.01", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    measured = json.loads(out.read_text())
    assert measured["rows"] and measured["markdown"].startswith("|")
