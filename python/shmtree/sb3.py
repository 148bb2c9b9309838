"""Stable-Baselines3's SubprocVecEnv with workers behind shmtree's pipes; to use it, change one import.

::

    from shmtree.sb3 import SubprocVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv
    model = PPO("CnnPolicy", SubprocVecEnv([make] * 8))

The class runs the code of the installed Stable-Baselines3, so arguments, attributes, results and errors are the same.
`shmtree.replay.sb3` has its replay buffers in shared memory.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from ._environments import Workers, check_constructor, missing, start_with
from ._public import claim_names
from .errors import ChannelClosed, ConnectionLost

try:
    from stable_baselines3 import __version__ as _version
    from stable_baselines3.common.vec_env import SubprocVecEnv as _Standard
except ModuleNotFoundError as _error:
    if _error.name != "stable_baselines3":
        raise
    raise missing("stable_baselines3", __name__) from None

__all__ = ["SubprocVecEnv"]

_MODULE = "mp"
check_constructor(_Standard, _MODULE, "stable-baselines3", _version)


class SubprocVecEnv(_Standard):
    """`stable_baselines3.common.vec_env.SubprocVecEnv`, with commands and results in shared memory.

    Large observations are not pickled: they are copied into shared memory once, and into the batch once. The same holds
    for arrays in infos and in results of `env_method`, which arrive as views.

    If a worker is killed, the call that waits raises `shmtree.errors.ConnectionLost`, an ``EOFError`` with the worker's
    pid, within a second, also if it waits for another worker. After that, `close` asks the other workers to close
    their environments, and terminates those that do not end within 5 s.
    """

    closed: bool

    def __init__(self, *args: Any, **options: Any) -> None:
        self._workers = Workers()
        start_with(self._workers, _Standard.__init__, _MODULE)(self, *args, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'closed' if self.closed else f'{self.num_envs} environments'}>"

    def close(self) -> None:
        """Closes the environments and ends the workers, also after a worker has died."""
        with contextlib.suppress(ChannelClosed, ConnectionLost):
            if self.closed or not self._workers.has_lost_one:
                super().close()
                return
        self._workers.end(self.processes, None)
        self.closed = True


functools.update_wrapper(SubprocVecEnv.__init__, _Standard.__init__, assigned=("__doc__",))  # shows the same signature
__dir__ = claim_names(globals())
