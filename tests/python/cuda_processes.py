"""Fixtures of the tests with a fake CUDA driver: `spawn` makes processes that have it."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import device_peers
import pytest

import shmtree


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler, which the fake driver needs")
    directory = tmp_path_factory.mktemp("fake_cuda")
    source = Path(__file__).with_name("fake_cuda.c")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", str(directory / "libcuda.so.1"), str(source)], check=True)
    return directory


class Process:
    """A `device_peers.Peer` in a process of its own."""

    def __init__(self, end: Any, devices: str, arena: shmtree.Arena | None) -> None:
        context = mp.get_context("spawn")
        self.told, theirs = context.Pipe()
        os.environ["FAKE_CUDA_DEVICES"] = devices
        self.process = context.Process(target=device_peers.serve, args=(end, theirs, arena))
        self.process.start()
        theirs.close()
        end.close()
        self.pid = self.hear()

    def hear(self) -> Any:
        assert self.told.poll(120), "the process says nothing"
        return self.told.recv()

    def ask(self, *command: Any) -> Any:
        self.told.send(command)
        done, answer = self.hear()
        assert done, answer
        return answer

    def fail(self, *command: Any) -> tuple[str, str, tuple[int, ...]]:
        self.told.send(command)
        done, answer = self.hear()
        assert not done, f"{command[0]} returned {answer}"
        return answer

    def end(self) -> None:
        self.told.send("end")

    def has_ended(self) -> bool:
        self.process.join(120)
        return self.process.exitcode == 0

    def kill(self) -> None:
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(60)


Spawn = Callable[..., Process]
Log = Callable[[Process], list[str]]


@pytest.fixture
def driver_log(fake_driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """What a process told the driver to do."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{fake_driver}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("FAKE_CUDA_DIR", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "a")
    return lambda process: (tmp_path / f"log.{process.pid}").read_text().splitlines()


@pytest.fixture
def spawn(driver_log: object) -> Iterator[Spawn]:
    processes: list[Process] = []

    def run(end: Any, devices: str = "a", arena: shmtree.Arena | None = None) -> Process:
        processes.append(Process(end, devices, arena))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
