"""Children that are forked without multiprocessing, at moments when other threads wait."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from typing import Any

# Python 3.13 without a GIL hands its locks (of dicts, of variables that closures share) from thread to thread. One that
# was handed to a thread just before a fork is nobody's in the child, which then waits for it, in no code of ours.
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
NOT_BESIDE_THREADS = "children of this Python without a GIL may wait for locks of its own that other threads had"


def fork(function: Callable[[], Any]) -> int:
    """A child that calls the function and leaves with 0 if that returns."""
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


def join(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def wait_until_all_sleep(count: int) -> None:
    """Until so many other threads of this process wait for something in the kernel."""
    me = threading.get_native_id()

    def state(task: str) -> str:
        with open(f"/proc/self/task/{task}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    while sum(state(task) == "S" for task in os.listdir("/proc/self/task") if int(task) != me) < count:
        os.sched_yield()
