"""Children that are forked without multiprocessing."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


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
