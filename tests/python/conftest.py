"""Fixtures for tests of channels: arenas that are checked, and child processes that are killed, after each test."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing as mp
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_processes import device_driver, driver_log, fake_driver, spawn  # noqa: F401  # fixtures
from services import client, served  # noqa: F401  # fixtures
from shared_state import violated
from starts import Start

import shmtree
from shmtree import _core

# Warnings are errors here.
UNUSED_AFTER = 300
_core.set_unused_after(UNUSED_AFTER)


def pytest_configure(config: pytest.Config) -> None:
    """Gives each test process, including each worker of pytest-xdist, its own folder of names.

    So the names and cleanups of one test process never affect those of another. It is no TemporaryDirectory, because a
    forked child that exits in the ordinary way would delete it.

    Also restores the handler of SIGINT: a shell starts a background job with SIGINT ignored, but tests interrupt
    processes.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = tempfile.mkdtemp(prefix="shmtree-test-")
    os.environ["SHMTREE_NAMES_DIR"] = f"{directory}/shmtree"
    config.addinivalue_line("markers", "serial: touches channels of all tests, or needs most of the memory: runs alone")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_report_header() -> str:
    """Reports which copy of the package the tests import: that of the checkout, or an installed one."""
    return f"shmtree: {Path(shmtree.__file__).parent}"


@pytest.fixture
def arena() -> Iterator[shmtree.Arena]:
    """An arena of 64 MiB. Its invariants must hold afterwards, and nothing may be left over."""
    made = shmtree.Arena(64 << 20)
    yield made
    gc.collect()
    assert violated(made) == ""


@pytest.fixture
def pair(arena: shmtree.Arena) -> Iterator[tuple[shmtree.Sender, shmtree.Receiver]]:
    sender, receiver = arena.create_pair(capacity=8)
    yield sender, receiver
    sender.close()
    receiver.close()


@pytest.fixture
def soon() -> Iterator[None]:
    """Makes a wait for an unused end warn after 0.1 s."""
    _core.set_unused_after(0.1)
    yield
    _core.set_unused_after(UNUSED_AFTER)


@pytest.fixture
def no_collector_callbacks() -> Iterator[None]:
    """Removes the callbacks of the garbage collector. Python only prints what a signal handler raises within one."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.fixture
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a directory with a folder `shmtree` for the names of this test and of its child processes."""
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    return tmp_path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"test-{os.getpid()}-{request.node.name}"[:200]


@pytest.fixture
def launcher() -> Iterator[Callable[[], int]]:
    """Returns a function that forks a process and returns its pid.

    The process inherits all ends, was given none, and uses none.
    """
    children: list[int] = []

    def begin() -> int:
        children.append(os.fork())
        if children[-1] == 0:
            while True:
                signal.pause()
        return children[-1]

    yield begin
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def start() -> Iterator[Start]:
    """Returns start(function, *arguments, method="fork"), which starts a child.

    Kills children that still run after the test.
    """
    children: list[Any] = []

    def run(function: Callable[..., None], *arguments: Any, method: str = "fork") -> Any:
        process = mp.get_context(method).Process(target=function, args=arguments)
        process.start()
        children.append(process)
        return process

    yield run
    for process in children:
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        process.close()
