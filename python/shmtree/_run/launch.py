"""Starts the program of `shmtree run`, passes signals on, and waits for its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HOOK = Path(__file__).parent / "hook"
_PREFIX = "shmtree-run."
#: Signals that are passed on to the program.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: a terminal sends the signal to all processes of its foreground group
_SLICE_S = 1.0  # interval of checks, in case SIGCHLD is lost


class Ended(NamedTuple):
    """The end of the program."""

    exit_code: int  #: as `subprocess.Popen.returncode`: negative for a signal
    seconds: float
    cpu_seconds: float  #: CPU time of the program, and of the children for which it waited


@contextlib.contextmanager
def directory(profile: bool) -> Iterator[str]:
    """Makes the directory in which the processes of a run write what they count, and removes it after the block.

    Also removes those of runs that were killed.
    """
    settings = f"{sys.implementation.cache_tag}\n{sys.prefix!r}\n{'profile' * profile}"
    *first, last = "/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/"
    for parent in first:
        _remove_stale(parent)
        with contextlib.suppress(OSError):  # it is read-only or full
            path, lock = _new_directory(parent, settings)
            break
    else:
        path, lock = _new_directory(last, settings)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove_stale(parent: str) -> None:
    for stale in Path(parent).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if stale.stat().st_uid == os.getuid() and (lock := _lock(stale, fcntl.LOCK_NB)) is not None:
                shutil.rmtree(stale, ignore_errors=True)
                os.close(lock)


def _new_directory(parent: str, settings: str) -> tuple[str, int]:
    """Makes a directory with the settings, and returns its path and the descriptor that locks it."""
    while (lock := _lock(path := tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))) is None:
        pass  # another run has removed the directory as stale
    try:
        Path(path, "settings").write_text(settings)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        raise
    return path, lock


def _lock(path: str | Path, mode: int = 0) -> int | None:
    """Locks a directory, and returns its descriptor. Returns None if it was removed, or if it is locked elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | mode)
            os.stat(path)
            return descriptor
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
    return None


def run(command: list[str], directory_path: str | None, **options: Any) -> Ended:
    """Runs a command. Its first word is the path of an executable file. Without a directory, replaces nothing.

    `options` are those of `os.posix_spawn`.
    """
    environment = dict(os.environ)
    if directory_path is not None:
        path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
        environment |= {"PYTHONPATH": path, "SHMTREE_RUN": directory_path}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED_ON, signal.SIGCHLD])
    began = time.monotonic()
    try:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise the kernel keeps no exit status
        pid = os.posix_spawn(command[0], command, environment, setsigmask=mask, **options)
        status, usage = _wait_for(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Ended(os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def _wait_for(pid: int) -> tuple[int, resource.struct_rusage]:
    awaited = [*_PASSED_ON, signal.SIGCHLD]
    while True:
        info = signal.sigtimedwait(awaited, _SLICE_S)
        if info is not None and info.si_signo in _PASSED_ON and info.si_code != _SENT_BY_KERNEL:
            os.kill(pid, info.si_signo)
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage


def die_of(number: int) -> None:
    """Ends this process by the signal that ended the program, without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
