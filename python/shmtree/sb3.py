"""Stable-Baselines3's SubprocVecEnv with workers behind shmtree's pipes; to use it, change one import.

::

    from shmtree.sb3 import SubprocVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv
    model = PPO("CnnPolicy", SubprocVecEnv([make] * 64, workers=8))

Without `workers`, the class runs the code of the installed Stable-Baselines3, so arguments, attributes, results and
errors are the same. With `workers`, each process steps several environments, and writes the results into one shared
batch.
`shmtree.replay.sb3` has its replay buffers in shared memory.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from ._environments.pipes import IdleModule, Workers, check_constructor, missing, start_with
from ._public import claim_names
from .errors import ChannelClosed, ConnectionLost

try:
    from stable_baselines3 import __version__ as _version
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.vec_env import SubprocVecEnv as _Standard
    from stable_baselines3.common.vec_env.patch_gym import _patch_env
except ModuleNotFoundError as _error:
    if _error.name != "stable_baselines3":
        raise
    raise missing("stable_baselines3", __name__) from None

from ._environments.pool import Pool, class_to_make
from ._environments.workers import Interface, Slot

__all__ = ["PooledVecEnv", "SubprocVecEnv"]

_MODULE = "mp"
check_constructor(_Standard, _MODULE, "stable-baselines3", _version)


class SubprocVecEnv(_Standard):
    """`stable_baselines3.common.vec_env.SubprocVecEnv`, with commands and results in shared memory.

    With `workers`, the call makes a `PooledVecEnv`: fewer processes, with several environments in each.

    Large observations are not pickled: they are copied into shared memory once, and into the batch once. The same holds
    for arrays in infos and in results of `env_method`, which arrive as views.

    If a worker is killed, the call that waits raises `shmtree.errors.ConnectionLost`, an ``EOFError`` with the worker's
    pid, within a second, also if it waits for another worker. After that, `close` asks the other workers to close
    their environments, and terminates those that do not end within 5 s.
    """

    closed: bool

    def __new__(cls, *args: Any, workers: int | None = None, **options: Any) -> Any:
        return super().__new__(class_to_make(cls, SubprocVecEnv, PooledVecEnv, workers))

    def __init__(self, *args: Any, workers: int | None = None, **options: Any) -> None:
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


class PooledVecEnv(SubprocVecEnv):
    """A vector environment with several environments in each worker; ``SubprocVecEnv(env_fns, workers=4)`` makes it.

    The results are those of `SubprocVecEnv`, with observations of the dtype of their space, and rewards of float64.
    The workers write observations, rewards and ends of episodes in place, as rows of one batch in shared memory.
    `step_wait` returns copies. Infos are sent in messages.

    Args:
        env_fns: Functions that make the environments.
        start_method: As in Stable-Baselines3.
        workers: Number of processes, at most one for each environment.
        restart: If True, a worker that is killed, or raises an error in `reset` or `step`, is replaced, with a
            RuntimeWarning. Each of its environments is made anew. Its next step is a reset, with the reward 0 and
            ``done``, and its info has ``restarted``. If the new worker fails before its first answer, the error is
            raised.

    Raises:
        ValueError: `workers` is not from 1 to the number of environments.
        shmtree.ConnectionLost: A worker died; the error has its pid and the numbers of its environments.
    """

    reset_infos: Any

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        start_method: str | None = None,
        *,
        workers: int,
        restart: bool = False,
    ) -> None:
        if start_method is None:
            start_method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(start_method)

        def start(target: Any, arguments: tuple[Any, ...], numbers: range) -> Any:
            process = context.Process(target=target, args=arguments, daemon=True)
            process.start()
            return process

        self._pool = Pool(Interface(_patch_env, _step, _restart, _command), env_fns, workers, start, restart)
        try:
            start_with(IdleModule(self._pool.remotes), _Standard.__init__, _MODULE)(self, env_fns, start_method)
        except BaseException:
            self._pool.end(0.0)
            raise
        self.processes = self._pool.processes
        self._rows = self._pool.share(self.observation_space, self.action_space, 1)

    def step_async(self, actions: Any) -> None:
        self._pool.settle()
        found = None if self._rows.write_actions(actions) else list(actions)
        if found is not None and len(found) != self.num_envs:
            raise ValueError(f"there are {len(found)} actions for {self.num_envs} environments")
        self._pool.step(found)
        self.waiting = True

    def step_wait(self) -> Any:
        self.waiting = False
        found, rows = self._pool.collect(None), self._rows
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": each} for each in rows.truncations.tolist()]
        if found:
            self.reset_infos = list(self.reset_infos)
            for number, (info, reset_info) in found:
                infos[number], self.reset_infos[number] = info, reset_info
        return rows.observations(None, True), rows.rewards.copy(), rows.terminations.copy(), tuple(infos)

    def close(self) -> None:
        """Closes the environments and ends the workers, also after a worker has died."""
        if not self.closed:
            self._pool.end(None)
            self.closed = True


# --- Workers


def _step(slot: Slot, action: Any) -> tuple[Any, ...]:
    observation, reward, terminated, truncated, info = slot.env.step(action)
    done, cut_off = terminated or truncated, truncated and not terminated
    if not (info or done):  # the main process makes the info
        return observation, reward, done, cut_off, None
    info["TimeLimit.truncated"] = cut_off
    if done:
        info["terminal_observation"] = observation
        observation, slot.reset_info = slot.reset()
    return observation, reward, done, cut_off, (info, slot.reset_info)


def _restart(slot: Slot) -> tuple[Any, ...]:
    observation, slot.reset_info = slot.reset()
    info = {"TimeLimit.truncated": True, "terminal_observation": observation, "restarted": True}
    return observation, 0.0, True, True, (info, slot.reset_info)


def _command(slot: Slot, command: tuple[str, Any]) -> Any:
    """Executes a command of Stable-Baselines3's class, as its worker does."""
    name, data = command
    env = slot.env
    if name == "reset":
        observation, slot.reset_info = slot.reset(seed=data[0], **({"options": data[1]} if data[1] else {}))
        return observation, slot.reset_info
    if name == "env_method":
        return env.get_wrapper_attr(data[0])(*data[1], **data[2])
    if name == "has_attr":
        try:
            env.get_wrapper_attr(data)
        except AttributeError:
            return False
        return True
    if name == "set_attr":
        return setattr(env, *data)
    if name == "get_spaces":
        return env.observation_space, env.action_space
    others: dict[str, Callable[[], Any]] = {
        "render": lambda: env.render(),
        "get_attr": lambda: env.get_wrapper_attr(data),
        "is_wrapped": lambda: is_wrapped(env, data),
    }
    return others[name]()


functools.update_wrapper(SubprocVecEnv.__init__, _Standard.__init__, assigned=("__doc__",))
_options = inspect.signature(PooledVecEnv.__init__).parameters
_parameters = [  # Stable-Baselines3's, and the options of workers
    *inspect.signature(_Standard).parameters.values(),
    _options["workers"].replace(default=None),
    _options["restart"],
]
SubprocVecEnv.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
__dir__ = claim_names(globals())
