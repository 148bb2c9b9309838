"""CPython's own tests of process queues and pipes pass with our classes.

`cpython_queues.py` lists the tests, and those that cannot apply.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "cpython_queues.py"
DEBIAN_PACKAGE = f"libpython{sys.version_info.major}.{sys.version_info.minor}-testsuite"

if not (importlib.util.find_spec("test") and importlib.util.find_spec("test._test_multiprocessing")):
    pytest.skip(f"this Python lacks its test package (Debian: {DEBIAN_PACKAGE})", allow_module_level=True)


def run_program(*arguments: str, limit: float) -> str:
    """Runs cpython_queues.py, kills its whole process group afterwards, and returns the output."""
    path = os.pathsep.join(filter(None, [str(PROGRAM.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as printed:  # not a pipe: children that outlive a hanging test would keep it open
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env={**os.environ, "PYTHONPATH": path},  # lets the children import the program as a module
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        return printed.read()


@functools.cache
def listed() -> list[tuple[str, str]]:
    """Returns all tests as pairs of run and name."""
    printed = run_program("list", limit=400)
    found = [line.split(" ") for line in printed.splitlines()]
    assert found and all(len(each) == 2 for each in found), printed
    return [(run, name) for run, name in found]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize(("run", "name"), listed(), ids=[f"{run}-{name}" for run, name in listed()])


class Run(NamedTuple):
    entries: dict[str, dict[str, str]]  # result of each test
    printed: str


def run_all(names: dict[str, list[str]], directory: Path) -> None:
    """Runs the tests of all runs at the same time, since they mostly sleep."""

    def run(name: str) -> None:
        printed = run_program("run", name, str(directory / name), *names[name], limit=1700)
        (directory / f"{name}.printed").write_text(printed)

    with futures.ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(run, names))


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Returns results(run). Its first call runs all selected tests, for all workers of pytest-xdist."""
    names: dict[str, list[str]] = {}
    for item in request.session.items:
        if item.path == Path(__file__):
            names.setdefault(item.callspec.params["run"], []).append(item.callspec.params["name"])
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cpython"

    @functools.cache
    def of(run: str) -> Run:
        directory.mkdir(exist_ok=True)
        with open(directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / "ran").exists():
                run_all(names, directory)
                (directory / "ran").touch()
        report = directory / run
        entries = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        return Run({entry["test"]: entry for entry in entries}, (directory / f"{run}.printed").read_text())

    return of


@pytest.mark.guarantee("pipe")
@pytest.mark.timeout(1800)
def test_cpython_test_passes(results: Callable[[str], Run], run: str, name: str) -> None:
    entries, printed = results(run)

    if name not in entries:
        pytest.fail(f"it did not come to an end:\n{printed[-20_000:]}")
    if entries[name]["wrong"]:
        pytest.fail(f"{entries[name]['wrong']}\n{printed[-20_000:]}")
    if entries[name]["skipped"]:
        pytest.skip(entries[name]["skipped"])
