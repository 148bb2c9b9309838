"""Children that are forked without multiprocessing, while other threads wait."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from shared_state import violated

import shmtree

# Python 3.13 without a GIL hands its locks (of dicts, of variables that closures share) from thread to thread. A lock
# that was handed to a thread just before a fork has no owner in the child. The child then waits for it forever, outside
# of our code.
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
NOT_BESIDE_THREADS = "children of this Python without a GIL may wait for locks of its own that other threads had"

MAX_S = 60.0


def fork(function: Callable[[], Any]) -> int:
    """Forks a child that calls the function, and exits with 0 if it returns."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def fork_alone(function: Callable[[], Any]) -> int:
    """Same as `fork`, for calls that may deadlock: the child has no signal handlers of other tests."""

    def run() -> None:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        function()

    return fork(run)


def join(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def join_within(child: int, seconds: float = MAX_S) -> None:
    """Waits for a child that must exit with 0. Kills it if it still runs after that time."""
    left = os.pidfd_open(child)
    try:
        has_left = bool(select.select([left], [], [], seconds)[0])
    finally:
        os.close(left)
    if not has_left:
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed, or did not leave in time"


def in_small_process(function: Callable[..., None], *arguments: Any) -> None:
    """Calls function(arena, *arguments) in a new process, for tests that fork often.

    A fork of pytest's process takes three times as long, because of all modules that it has imported.
    """
    import multiprocessing as mp

    process = mp.get_context("spawn").Process(target=call_with_arena, args=(function, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0


def call_with_arena(function: Callable[..., None], *arguments: Any) -> None:
    arena = shmtree.Arena(64 << 20)
    function(arena, *arguments)
    gc.collect()
    assert violated(arena) == ""


def threads_of_test() -> list[int]:
    """Returns the main thread and those that `threading` started.

    pytest and pytest-xdist have threads of their own, which always sleep.
    """
    started = [
        thread.native_id or 0
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)
    ]
    return [os.getpid(), *started]


def sleeps(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return False


def wait_until_all_sleep(count: int) -> None:
    """Blocks until that many other threads of the test have slept in the kernel for longer than a wait for the GIL."""
    me = threading.get_native_id()
    seen = 0
    while seen < 20:
        asleep = sum(sleeps(thread) for thread in threads_of_test() if thread != me)
        seen = seen + 1 if asleep >= count else 0
        time.sleep(0.001)
