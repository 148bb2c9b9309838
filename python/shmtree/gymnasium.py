"""Gymnasium's AsyncVectorEnv with workers behind shmtree's pipes; to use it, change one import.

::

    from shmtree.gymnasium import AsyncVectorEnv  # was: from gymnasium.vector import AsyncVectorEnv
    environments = AsyncVectorEnv([make] * 64, workers=8)

Without `workers`, the class runs the code of the installed Gymnasium, so arguments, attributes, results and errors are
the same. With `workers`, each process steps several environments, and writes the results into one shared batch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._environments.pipes import IdleModule, Workers, check_constructor, missing, start_with
from ._ipc.arguments import natural, whole
from ._public import claim_names
from .errors import ChannelClosed, ConnectionLost

try:
    from gymnasium import __version__ as _version
    from gymnasium import logger
    from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
    from gymnasium.spaces.utils import is_space_dtype_shape_equiv
    from gymnasium.vector import AsyncVectorEnv as _Standard
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.async_vector_env import AsyncState
    from gymnasium.vector.utils import clear_mpi_env_vars, iterate
except ModuleNotFoundError as _error:
    if _error.name != "gymnasium":
        raise
    raise missing("gymnasium", __name__) from None

from ._environments.pool import Pool, class_to_make
from ._environments.workers import Interface, Slot

__all__ = ["AsyncVectorEnv", "PooledVectorEnv"]

_MODULE = "multiprocessing"
check_constructor(_Standard, _MODULE, "gymnasium", _version)


class AsyncVectorEnv(_Standard):
    """`gymnasium.vector.AsyncVectorEnv`, with commands and results in shared memory.

    With `workers`, the call makes a `PooledVectorEnv`: fewer processes, with several environments in each.

    With ``shared_memory=False``, large observations are not pickled: they are copied into shared memory once, and into
    the batch once. The same holds for arrays in infos and in results of `call`, which arrive as views.

    If a worker is killed, the call that waits raises `shmtree.errors.ConnectionLost`, an ``EOFError`` with the worker's
    pid, within a second, also if it waits for another worker. After that, `close` asks the other workers to close
    their environments, and terminates those that do not end within 5 s, or within its `timeout`.
    """

    def __new__(cls, *args: Any, workers: int | None = None, **options: Any) -> Any:
        return super().__new__(class_to_make(cls, AsyncVectorEnv, PooledVectorEnv, workers))

    def __init__(self, *args: Any, workers: int | None = None, **options: Any) -> None:
        self._workers = Workers()
        start_with(self._workers, _Standard.__init__, _MODULE)(self, *args, **options)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Closes the environments and ends the workers, also after a worker has died."""
        with contextlib.suppress(ChannelClosed, ConnectionLost):
            if not self._workers.has_lost_one:
                super().close_extras(timeout, terminate)
                return
        self._workers.end(self.processes, 0.0 if terminate else timeout)


class PooledVectorEnv(AsyncVectorEnv):
    """A vector environment with several environments in each worker; ``AsyncVectorEnv(env_fns, workers=4)`` makes it.

    The results are those of Gymnasium's `SyncVectorEnv`. Observations, rewards, terminations and truncations are rows
    of one batch in shared memory, which the workers write in place. Actions are in shared memory too, if they have
    exactly the dtype of the action space. Values of Text, Sequence, Graph and custom spaces, and infos, are sent in
    messages.

    `send` and `recv` step some environments and return those that finish first. A worker steps its environments one
    after the other, so an environment delays those of its own worker only.

    Args:
        env_fns: Functions that make the environments.
        copy: As in Gymnasium. If False, `reset` and `step` return observations as views of the shared batch. `step`
            alternates between two halves of it, so its views are overwritten by the second `step` after it, and by
            `reset` and `send`.
        workers: Number of processes, at most one for each environment.
        batch_size: Default number of environments for `recv`. None: all that were sent an action.
        restart: If True, a worker that is killed, raises an error in `reset` or `step`, or does not answer within the
            timeout of a call, is replaced, with a RuntimeWarning. Each of its environments is made anew. Its next step
            is a reset, with the reward 0 and ``truncated``, and ``info["restarted"]`` is true for it. If the new worker
            fails before its first answer, the error is raised.
        args, options: `context`, `daemon`, `observation_mode` and `autoreset_mode` are those of Gymnasium. The other
            arguments of `gymnasium.vector.AsyncVectorEnv` cannot be combined with `workers`, and `shared_memory` has no
            effect.

    Raises:
        ValueError: `workers` or `batch_size` is not from 1 to the number of environments, or `worker` or
            `max_concurrency` is given.
        shmtree.ConnectionLost: A worker died.

    A call that waits for a killed worker raises `shmtree.ConnectionLost` within a second, with the worker's pid and the
    numbers of its environments. The error of an environment is raised with the same text as its cause.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *args: Any,
        workers: int,
        batch_size: int | None = None,
        restart: bool = False,
        **options: Any,
    ) -> None:
        bound = inspect.signature(_Standard.__init__).bind(self, env_fns, *args, **options)
        bound.apply_defaults()
        given = bound.arguments
        for name in ("worker", "max_concurrency"):
            if given.get(name) is not None:
                raise ValueError(f"{name} cannot be combined with workers={workers!r}; leave out one of them")
        if batch_size is not None and not 1 <= whole("batch_size", batch_size) <= len(env_fns):
            raise ValueError(f"batch_size is {batch_size}; it must be from 1 to {len(env_fns)}")
        self.batch_size = batch_size
        mode = AutoresetMode(given["autoreset_mode"])
        context: Any = multiprocessing.get_context(given["context"])

        def start(target: Any, arguments: tuple[Any, ...], numbers: range) -> Any:
            name = f"Worker<AsyncVectorEnv>-{numbers[0]}"
            process = context.Process(target=target, args=arguments, name=name, daemon=given["daemon"])
            with clear_mpi_env_vars():
                process.start()
            return process

        step = {AutoresetMode.NEXT_STEP: _next_step, AutoresetMode.SAME_STEP: _same_step}.get(mode, _plain_step)
        restarted = _restart_in_step if mode is AutoresetMode.SAME_STEP else _restart
        self._pool = Pool(Interface(_unchanged, step, restarted, _command), env_fns, workers, start, restart)
        try:
            given["shared_memory"] = False
            start_with(IdleModule(self._pool.remotes), _Standard.__init__, _MODULE)(*bound.args, **bound.kwargs)
        except BaseException:
            self._pool.end(0.0)
            raise
        self.shared_memory, self.processes = True, self._pool.processes
        halves = 1 if self.copy else 2
        self._rows = self._pool.share(self.single_observation_space, self.single_action_space, halves)

    def reset_async(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset_async(seed, options)
        self._post()

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        super().call_async(name, *args, **kwargs)
        self._post()

    def step_async(self, actions: Any) -> None:
        self._check_state("step_async")
        self._pool.settle()
        self._check_ended(slice(None))
        self._pool.step(self._unwritten(actions, None))
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._assert_is_running()
        if self._state != AsyncState.WAITING_STEP or self._pool.sent:
            raise NoAsyncCallError("Calling `step_wait` without any prior call to `step_async`.", "step")
        self._state = AsyncState.DEFAULT
        infos: dict[str, Any] = {}
        for number, info in self._pool.collect(timeout):
            infos = self._add_info(infos, info, number)
        rows = self._rows
        self.observations = rows.observations(None, self.copy)
        return self.observations, rows.rewards.copy(), rows.terminations.copy(), rows.truncations.copy(), infos

    def send(self, actions: Any, ids: Sequence[int]) -> None:
        """Begins a step of some environments. `recv` returns the results.

        Args:
            actions: A batch of actions, one for each of `ids`.
            ids: Numbers of environments, each once.

        Raises:
            ValueError: A number is out of range, occurs twice, or its environment has not been received since its last
                action; or there is another number of actions.
            gymnasium.error.AlreadyPendingCallError: Another call, such as `step_async`, is pending.
        """
        if not self._pool.sent:
            self._check_state("send")
            self._pool.settle()
        numbers = [whole("ids", number) for number in ids]
        if len(set(numbers)) < len(numbers) or not all(0 <= number < self.num_envs for number in numbers):
            raise ValueError(f"ids is {numbers}; it must have different numbers from 0 to {self.num_envs - 1}")
        if not self._pool.sent.isdisjoint(numbers):
            raise ValueError(f"environments {sorted(self._pool.sent.intersection(numbers))} have to be received first")
        self._check_ended(numbers)
        self._pool.send(numbers, self._unwritten(actions, numbers))
        if self._pool.sent:
            self._state = AsyncState.WAITING_STEP

    def recv(self, n: int | None = None, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns the results of the first `n` environments of `send` that are done.

        Args:
            n: Number of environments. None takes `batch_size`, or all that were sent an action.
            timeout: Seconds to wait; None waits indefinitely.

        Returns:
            Observations, rewards, terminations, truncations and infos as from `step`, with `n` rows, in the order in
            which the environments finished. All are copies. ``infos["env_id"]`` has the number of each environment.

        Raises:
            ValueError: Fewer than `n` environments were sent an action.
            gymnasium.error.NoAsyncCallError: No environment was sent an action.
            multiprocessing.TimeoutError: Fewer than `n` were done in time. They can still be received.
        """
        self._assert_is_running()
        if not (sent := len(self._pool.sent)):
            raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "step")
        n = natural("n", n or self.batch_size or sent)
        if n > sent:
            raise ValueError(f"cannot receive {n} environments: only {sent} were sent an action; send more, or pass n")
        try:
            found = self._pool.receive(n, timeout)
        finally:
            if not self._pool.sent:
                self._state = AsyncState.DEFAULT
        numbers = np.array([number for number, _ in found])
        batch, infos = _Batch(n), {"env_id": numbers}
        for row, (_, info) in enumerate(found):
            infos = batch._add_info(infos, info, row)
        rows = self._rows
        return (
            rows.observations(numbers, True),
            rows.rewards[numbers],
            rows.terminations[numbers],
            rows.truncations[numbers],
            infos,
        )

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Closes the environments and ends the workers.

        Args:
            timeout: Seconds until workers that have not ended are terminated, or killed if that does not end them. None
                waits indefinitely; 5 s after a call that failed.
            terminate: If True, terminates the workers at once.
        """
        try:
            if self._state != AsyncState.DEFAULT:
                logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        finally:
            self._pool.end(timeout, terminate)

    def _check_state(self, call: str) -> None:
        self._assert_is_running()
        if self._state != AsyncState.DEFAULT:
            pending = str(self._state.value)
            text = f"Calling `{call}` while waiting for a pending call to `{pending}` to complete."
            raise AlreadyPendingCallError(text, pending)

    def _check_ended(self, numbers: Any) -> None:
        if self.autoreset_mode is AutoresetMode.DISABLED:
            rows = self._rows
            ended = rows.terminations[numbers] | rows.truncations[numbers]
            assert not ended.any(), f"episodes have ended; reset these environments first: {ended}"

    def _unwritten(self, actions: Any, numbers: list[int] | None) -> list[Any] | None:
        """Writes the actions into the batch. Returns them as a list if they have to be sent."""
        if self._rows.write_actions(actions, numbers):
            return None
        found, count = list(iterate(self.action_space, actions)), self.num_envs if numbers is None else len(numbers)
        if len(found) != count:
            raise ValueError(f"there are {len(found)} actions for {count} environments")
        return found

    def _post(self) -> None:
        try:
            self._pool.post()
        except BaseException:
            self._state = AsyncState.DEFAULT
            raise

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Waits for all answers to a command of Gymnasium's class."""
        try:
            self._pool.exchange(timeout)
        except BaseException:
            self._state = AsyncState.DEFAULT
            raise
        self.observations = self._rows.observations(None, False)
        return True


class _Batch(VectorEnv):  # type: ignore[misc]
    """Collects the infos of a batch."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs


# --- Workers


def _unchanged(env: Any) -> Any:
    return env


def _plain_step(slot: Slot, action: Any) -> Any:
    return slot.env.step(action)


def _next_step(slot: Slot, action: Any) -> tuple[Any, ...]:
    if slot.ended:
        observation, info = slot.reset()
        return observation, 0.0, False, False, info
    result: tuple[Any, ...] = slot.env.step(action)
    slot.ended = result[2] or result[3]
    return result


def _same_step(slot: Slot, action: Any) -> tuple[Any, ...]:
    observation, reward, terminated, truncated, info = slot.env.step(action)
    if terminated or truncated:
        last = {"final_obs": observation, "final_info": info}
        observation, info = slot.reset()
        info = {**last, **info}
    return observation, reward, terminated, truncated, info


def _restart(slot: Slot) -> tuple[Any, ...]:
    observation, info = slot.reset()
    slot.ended = True
    return observation, 0.0, False, True, info


def _restart_in_step(slot: Slot) -> tuple[Any, ...]:
    observation, info = slot.reset()
    return observation, 0.0, False, True, {"final_obs": observation, "final_info": {}, **info}


def _command(slot: Slot, command: tuple[str, Any]) -> tuple[Any, bool]:
    """Executes a command of Gymnasium's class, as its worker does."""
    name, data = command
    env = slot.env
    if name == "reset" or (name == "reset-noop" and slot.restarted):
        observation, info = slot.reset(**(data or {}))
        slot.clear()
        slot.write(observation)
        return (None, info), True
    if name == "reset-noop":
        return (None, {}), True
    if name == "_setattr":
        env.set_wrapper_attr(*data)
        return None, True
    if name == "_check_spaces":
        mode, observation_space, action_space = data
        is_same = observation_space == env.observation_space
        if mode != "same":
            is_same = is_space_dtype_shape_equiv(observation_space, env.observation_space)
        return (is_same, action_space == env.action_space), True
    called, args, kwargs = data
    if called in ("reset", "step", "close", "_setattr", "_check_spaces"):
        raise ValueError(f"Trying to call function `{called}` with `call`, use `{called}` directly instead.")
    attribute = env.get_wrapper_attr(called)
    return (attribute(*args, **kwargs) if callable(attribute) else attribute), True


functools.update_wrapper(AsyncVectorEnv.__init__, _Standard.__init__, assigned=("__doc__",))
_options = inspect.signature(PooledVectorEnv.__init__).parameters
_optional = {"workers": None, "batch_size": None, "restart": False}
_parameters = [  # Gymnasium's, and the options of workers
    *inspect.signature(_Standard).parameters.values(),
    *(_options[name].replace(default=default) for name, default in _optional.items()),
]
AsyncVectorEnv.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
__dir__ = claim_names(globals())
