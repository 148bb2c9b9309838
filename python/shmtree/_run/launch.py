"""Starts the program of `shmtree run`, passes signals on, and waits for its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HOOK = Path(__file__).parent / "hook"
_PREFIX = "shmtree-run-"
_SETTINGS = "settings"
#: Signals that are passed on to the program.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: a terminal sends the signal to all processes of its foreground group
_SLICE_S = 1.0  # interval of checks, in case SIGCHLD is lost


class Ended(NamedTuple):
    """The end of the program."""

    exit_code: int  #: as `subprocess.Popen.returncode`: negative for a signal
    seconds: float
    cpu_seconds: float  #: of the program and of those of its children that it waited for


@contextlib.contextmanager
def directory(profile: bool) -> Iterator[str]:
    """Makes the directory in which the processes of a run write what they count, and removes it after the block.

    Also removes those of runs that were killed. A run has locked the settings in its directory.
    """
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _remove_stale(parent)
    path = tempfile.mkdtemp(prefix="." + _PREFIX, dir=parent)
    try:
        with open(os.path.join(path, _SETTINGS), "w") as settings:
            fcntl.flock(settings, fcntl.LOCK_EX)
            json.dump({"profile": profile, "python": [sys.implementation.cache_tag, sys.prefix]}, settings)
            settings.flush()
            visible = os.path.join(parent, os.path.basename(path)[1:])
            os.rename(path, visible)  # only now, when it is locked, do other runs see it
            path = visible
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_stale(parent: str) -> None:
    for path in Path(parent).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(path / _SETTINGS) as settings:
            if path.stat().st_uid == os.getuid():
                fcntl.flock(settings, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


def environment(directory_path: str) -> dict[str, str]:
    """Returns the environment of the program."""
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HOOK), *([path] if path else [])]),
        "SHMTREE_RUN": directory_path,
    }


def run(arguments: Sequence[str], directory_path: str) -> Ended:
    """Runs Python with these arguments, and with the options of this interpreter."""
    # multiprocessing uses the same private function. It knows all options.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *options, *arguments]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED_ON, signal.SIGCHLD])
    began = time.monotonic()
    try:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise there is no status to wait for
        pid = os.posix_spawn(sys.executable, command, environment(directory_path), setsigmask=mask)
        status = _wait_for(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Ended(os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def _wait_for(pid: int) -> int:
    awaited = [*_PASSED_ON, signal.SIGCHLD]
    while True:
        info = signal.sigtimedwait(awaited, _SLICE_S)
        if info is not None and info.si_signo in _PASSED_ON and info.si_code != _SENT_BY_KERNEL:
            os.kill(pid, info.si_signo)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status


def die_of(number: int) -> None:
    """Ends this process by the signal that ended the program, without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
