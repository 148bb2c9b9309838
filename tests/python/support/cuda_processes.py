"""Processes of the tests with CUDA. `spawn` starts them with the fake driver or, if there is a GPU, the real one."""

from __future__ import annotations

import functools
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
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
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    if os.environ.get("SHMTREE_WERROR") == "ON":
        flags.append("-Werror")
    subprocess.run([compiler, *flags, "-o", str(directory / "libcuda.so.1"), str(source)], check=True)
    return directory


@functools.cache
def gpus() -> int:
    """Returns the number of devices of the real driver. Asks in another process, because this one may fork later."""
    count = "from shmtree.cuda import _driver; print(len(_driver.driver()._uuids))"
    done = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, timeout=120)
    return int(done.stdout) if done.returncode == 0 else 0


@functools.cache
def has_driver() -> bool:
    """Returns True if there is a real driver, with or without a device."""
    load = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    return subprocess.run([sys.executable, "-c", load], capture_output=True, timeout=120).returncode == 0


class Process:
    """A peer, such as `device_peers.Peer`, in its own process."""

    def __init__(
        self,
        end: Any,
        arena: shmtree.Arena | None = None,
        peer: Callable[[Any, Any], Any] = device_peers.Peer,
        method: str = "spawn",
        closes_end: bool = True,
    ) -> None:
        context: Any = mp.get_context(method)
        self.told, theirs = context.Pipe()
        self.process = context.Process(target=device_peers.serve, args=(end, theirs, arena, peer))
        self.process.start()
        theirs.close()
        if closes_end:
            end.close()
        self.pid = self.process.pid

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
    """Returns a function that reads which driver calls a process made."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{fake_driver}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("FAKE_CUDA_DIR", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "a")
    return lambda process: (tmp_path / f"log.{process.pid}").read_text().splitlines()


ON_THE_FAKE = pytest.mark.parametrize("device_driver", ["fake"], indirect=True)  # the fake driver logs its calls


@pytest.fixture(params=["fake", "real"])
def device_driver(request: pytest.FixtureRequest) -> str:
    """Runs the test with each of the drivers."""
    if request.param == "fake":
        request.getfixturevalue("driver_log")
    elif gpus() == 0:
        pytest.skip("no GPU")
    return str(request.param)


@pytest.fixture
def spawn(device_driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawn]:
    processes: list[Process] = []

    def run(end: Any, devices: str = "a", arena: shmtree.Arena | None = None) -> Process:
        monkeypatch.setenv("FAKE_CUDA_DEVICES", devices)
        processes.append(Process(end, arena))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
