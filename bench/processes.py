"""Starts processes, measures their CPU seconds and resident memory, and ends whole process trees."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes orphaned descendants, including daemons, children of this process, so that `end_tree` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Kills this process when its parent dies, so that no process remains if the benchmark is killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Forks a process that runs `target`, and ends it at the end of the `with` block."""

    def run() -> None:
        end_with_parent()
        target(*arguments)

    made = multiprocessing.get_context("fork").Process(target=run)
    made.start()
    try:
        yield
    finally:
        made.kill()
        made.join()


def _compute() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs `count` processes that only compute."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(child(_compute))
        yield


def descendants(*roots: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = list(roots)
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def end_tree(root: int) -> None:
    """Kills a child and all its descendants. Processes that clean up after others get a moment to do so."""
    living = [root, *descendants(root)]
    cleaners = [pid for pid in living if _is_cleaner(pid)]
    for pid in living:
        if pid not in cleaners:
            _kill(pid)
    deadline = time.monotonic() + 20  # the end of a process with gigabytes takes seconds
    while living:
        late = time.monotonic() > deadline
        living = [pid for pid in living if not _is_over(pid)]
        for pid in living:
            if late:
                _kill(pid)
        time.sleep(0.002)


def end_children() -> None:
    """Ends all children, including those that this process adopted."""
    me = os.getpid()
    while children := [pid for pid in descendants(me) if not _is_over(pid)]:
        for pid in children:
            end_tree(pid)


def _is_cleaner(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _is_over(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # not our child: its parent has to reap it
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def cpu_seconds(pids: list[int]) -> float:
    """Returns the user and kernel CPU seconds of the live threads of these processes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pids: list[int]) -> int:
    """Returns the private bytes of all processes, plus the largest shared size, since they mostly share the same
    pages."""
    private, shared = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/statm").read_text().split()
            private += int(fields[1]) - int(fields[2])
            shared = max(shared, int(fields[2]))
    return (private + shared) * _PAGE


def available_bytes() -> int:
    """Returns the bytes that both the machine and our control group have left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    left = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        left = min(left, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return left
