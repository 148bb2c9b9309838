"""Gymnasium's AsyncVectorEnv with workers behind shmtree's pipes; to use it, change one import.

::

    from shmtree.gymnasium import AsyncVectorEnv  # was: from gymnasium.vector import AsyncVectorEnv
    environments = AsyncVectorEnv([make] * 8, shared_memory=False)

The class runs the code of the installed Gymnasium, so arguments, attributes, results and errors are the same.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from ._environments import Workers, check_constructor, missing, start_with
from ._public import claim_names
from .errors import ChannelClosed, ConnectionLost

try:
    from gymnasium import __version__ as _version
    from gymnasium.vector import AsyncVectorEnv as _Standard
except ModuleNotFoundError as _error:
    if _error.name != "gymnasium":
        raise
    raise missing("gymnasium", __name__) from None

__all__ = ["AsyncVectorEnv"]

_MODULE = "multiprocessing"
check_constructor(_Standard, _MODULE, "gymnasium", _version)


class AsyncVectorEnv(_Standard):
    """`gymnasium.vector.AsyncVectorEnv`, with commands and results in shared memory.

    With ``shared_memory=False``, large observations are not pickled: they are copied into shared memory once, and into
    the batch once. The same holds for arrays in infos and in results of `call`, which arrive as views.

    If a worker is killed, the call that waits raises `shmtree.errors.ConnectionLost`, an ``EOFError`` with the worker's
    pid, within a second, also if it waits for another worker. After that, `close` asks the other workers to close
    their environments, and terminates those that do not end within 5 s, or within its `timeout`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._workers = Workers()
        start_with(self._workers, _Standard.__init__, _MODULE)(self, *args, **options)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Closes the environments and ends the workers, also after a worker has died."""
        with contextlib.suppress(ChannelClosed, ConnectionLost):
            if not self._workers.has_lost_one:
                super().close_extras(timeout, terminate)
                return
        self._workers.end(self.processes, 0.0 if terminate else timeout)


functools.update_wrapper(AsyncVectorEnv.__init__, _Standard.__init__, assigned=("__doc__",))  # shows the same signature
__dir__ = claim_names(globals())
