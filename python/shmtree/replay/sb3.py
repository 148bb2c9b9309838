"""Replay buffers of Stable-Baselines3 in shared memory; to use them, change one import.

::

    from shmtree.replay.sb3 import ReplayBuffer
    model = DQN("MlpPolicy", environment, replay_buffer_class=ReplayBuffer)

Calls, results, attributes and the random draws for a given seed of NumPy are those of Stable-Baselines3.
`buffer.shared` is the `shmtree.replay.ReplayBuffer` with the rows: other processes may sample it, and add to it.
"""

from __future__ import annotations

import copy
import warnings
from multiprocessing import context
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.buffers import DictReplayBuffer as _StandardDict
from stable_baselines3.common.buffers import NStepReplayBuffer as _StandardNStep
from stable_baselines3.common.buffers import ReplayBuffer as _Standard
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.her import HerReplayBuffer as _StandardHer

from .._ipc.shared_array import SharedArray
from .._public import claim_names
from . import _files
from ._buffer import ReplayBuffer as _Shared
from ._options import RING
from ._ring import Array, Ring
from ._ring_array import RingArray

__all__ = ["DictReplayBuffer", "HerReplayBuffer", "NStepReplayBuffer", "ReplayBuffer"]

_Leaf = tuple[tuple[int, ...], Any]
_NUMBER: _Leaf = ((), np.dtype(np.float32))


class ReplayBuffer(_Standard):
    """`stable_baselines3.common.buffers.ReplayBuffer`, with the rows in shared memory.

    `observations`, `next_observations`, `actions`, `rewards`, `dones` and `timeouts` are read like arrays of shape
    (buffer_size, n_envs, ...); each read copies, and writing to them raises TypeError.

    With ``optimize_memory_usage=True``, the observation after a step is stored as the observation of the next step, so
    only one process can add: `add` raises RuntimeError if another process has added.

    A pickle or a copy contains all rows, as `save_replay_buffer` needs. If you pass the buffer to a process as an
    argument, it refers to the same rows.
    """

    shared: _Shared

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        self._check(observation_space, optimize_memory_usage, handle_timeout_termination)
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._observation_leaves = self._observation_columns()
        self._action_leaf: _Leaf = ((self.action_dim,), np.dtype(self._maybe_cast_dtype(action_space.dtype)))
        columns = {
            "obs": self._observation_leaves,
            "action": self._action_leaf,
            "reward": np.float32,
            "done": np.float32,
            "timeout": np.float32,
        }
        if not optimize_memory_usage:
            columns["next_obs"] = columns["obs"]
        self.shared = _Shared(self.buffer_size * n_envs, columns=columns, **RING)
        self._ring = Ring(self.shared)
        self._forced_full = False
        self._newest_next: tuple[int, Any] = (-1, None)  # with optimize_memory_usage: step, observation after it

    @staticmethod
    def _check(observation_space: Any, optimize_memory_usage: bool, handle_timeout_termination: bool) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise TypeError(f"observation_space is {observation_space}; use DictReplayBuffer for it")
        if optimize_memory_usage and handle_timeout_termination:
            raise ValueError(
                "ReplayBuffer does not support optimize_memory_usage = True "
                "and handle_timeout_termination = True simultaneously."
            )

    # --- Columns and rows

    def _observation_columns(self) -> Any:
        return (self.obs_shape, np.dtype(self.observation_space.dtype))

    def _observation_rows(self, observation: Any) -> Any:
        return _rows_of(self.n_envs, observation, self._observation_leaves, self.observation_space)

    def __repr__(self) -> str:
        count = int(self.n_envs)
        return f"<{type(self).__name__}, {self._ring.state(f'steps of {count} environments', count)}>"

    # --- Size

    @property
    def _steps(self) -> int:
        return self._ring.added // int(self.n_envs)

    @property
    def pos(self) -> int:
        """Place of the next step. All processes share it."""
        return self._steps % self.buffer_size if "_ring" in self.__dict__ else 0

    @pos.setter
    def pos(self, pos: int) -> None:
        if pos != self.pos:
            raise AttributeError("pos cannot be set, because all processes share it; reset() sets it to 0")

    @property
    def full(self) -> bool:
        """True if every place has a row, or if you set this property to True."""
        return "_ring" in self.__dict__ and (self._forced_full or self._steps >= self.buffer_size)

    @full.setter
    def full(self, full: bool) -> None:
        self._forced_full = bool(full)

    def reset(self) -> None:
        self._ring.clear()
        self._forced_full = False
        self._newest_next = (-1, None)

    # --- Adding and sampling

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        timeout: Any = 0.0
        if self.handle_timeout_termination:
            timeout = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        following = self._observation_rows(next_obs)
        rows = {
            "obs": self._observation_rows(obs),
            "action": _broadcast(self.n_envs, action.reshape((self.n_envs, self.action_dim)), self._action_leaf),
            "reward": _broadcast(self.n_envs, reward, _NUMBER),
            "done": _broadcast(self.n_envs, done, _NUMBER),
            "timeout": _broadcast(self.n_envs, timeout, _NUMBER),
        }
        if self.optimize_memory_usage:
            steps = self._steps
            self._check_adder(steps)
            self._newest_next = (steps + 1, following)
        else:
            rows["next_obs"] = following
        self.shared.extend(rows)

    def _check_adder(self, steps: int) -> None:
        """Raises RuntimeError if another process has added since this one did."""
        newest = self._newest_next[0]
        if steps not in (0, newest, newest - 1):  # newest - 1: the last `extend` raised
            raise RuntimeError(
                f"another process has added to this buffer: the buffer has {steps} steps, and the last step of this "
                f"process was {max(newest, 0)}. With optimize_memory_usage=True, only one process can add"
            )

    def sample(self, batch_size: int, env: Any = None) -> Any:
        if not self.optimize_memory_usage:
            return BaseBuffer.sample(self, batch_size, env)
        # Only the process that added the newest step knows the observation after that step.
        newest, following = self._newest_next
        steps_now = self._steps
        lacks_newest = steps_now != 0 and (steps_now != newest or following is None)
        # Observations and next observations share one array, so the newest observation of a full buffer overwrites the
        # oldest.
        if self.full:
            steps = np.random.randint(1, self.buffer_size - lacks_newest, size=batch_size)
            steps = (steps + self.pos) % self.buffer_size
        else:
            steps = np.random.randint(0, self.pos - lacks_newest, size=batch_size)
        return self._get_samples(steps, env)

    def _rows_at(self, steps: Array) -> tuple[Any, Any]:
        """Returns the rows of these steps, each of a random environment, and the observations after them."""
        environments = np.random.randint(0, high=self.n_envs, size=(len(steps),))
        rows = self._ring.read(steps * self.n_envs + environments, 0)
        if not self.optimize_memory_usage:
            return rows, rows["next_obs"]
        after = (steps + 1) % self.buffer_size
        following = self._ring.read(after * self.n_envs + environments, 0)["obs"]
        newest, observation = self._newest_next
        if newest == self._steps and observation is not None:
            is_last = after == self.pos
            following[is_last] = observation[environments[is_last]]
        return rows, following

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        rows, following = self._rows_at(batch_inds)
        data = (
            self._normalize_obs(rows["obs"], env),
            rows["action"],
            self._normalize_obs(following, env),
            (rows["done"] * (1 - rows["timeout"])).reshape(-1, 1),
            self._normalize_reward(rows["reward"].reshape(-1, 1), env),
        )
        return ReplayBufferSamples(*map(self.to_torch, data))  # type: ignore[arg-type]

    # --- Columns

    def _column(self, name: str, leaf: _Leaf, *path: str) -> RingArray:
        return RingArray(self._ring, (name, *path), (self.buffer_size, self.n_envs), *leaf, fill=0)

    def _observations(self, name: str) -> Any:
        return self._column(name, self._observation_leaves)

    @property
    def observations(self) -> Any:
        return self._observations("obs")

    @property
    def next_observations(self) -> Any:
        if self.optimize_memory_usage:
            raise AttributeError("a buffer with optimize_memory_usage=True has no next_observations")
        return self._observations("next_obs")

    actions: Any = property(lambda self: self._column("action", self._action_leaf))
    rewards: Any = property(lambda self: self._column("reward", _NUMBER))
    dones: Any = property(lambda self: self._column("done", _NUMBER))
    timeouts: Any = property(lambda self: self._column("timeout", _NUMBER))

    # --- Other processes, and files

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if context.get_spawning_popen() is None:
            state["shared"] = _files.to_bytes(self.shared)
            state["_ring"] = self._ring.added
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["shared"], dict):
            shared = _files.from_bytes(_Shared, state["shared"])
            state = {**state, "shared": shared, "_ring": Ring(shared, state["_ring"])}
            steps = state["_ring"].added // int(state["n_envs"])
            if state["_newest_next"][0] != steps:  # the copy was not made by the process that adds
                state["_newest_next"] = (steps, None)
        self.__dict__.update(state)


class NStepReplayBuffer(ReplayBuffer, _StandardNStep):
    """`stable_baselines3.common.buffers.NStepReplayBuffer`, with the rows in shared memory."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_steps, self.gamma = n_steps, gamma
        if self.optimize_memory_usage:
            raise NotImplementedError("NStepReplayBuffer doesn't support optimize_memory_usage=True")

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        environments: Any = np.random.randint(0, self.n_envs, size=batch_inds.shape)
        newest = (self.pos - 1) % self.buffer_size
        steps = (batch_inds[:, None] + np.arange(self.n_steps)) % self.buffer_size
        rows = self._ring.read(steps * self.n_envs + environments[:, None], 0)
        reward, done, timeout = (rows[key].reshape(steps.shape) for key in ("reward", "done", "timeout"))
        # The step after the newest one is the oldest, of another episode.
        timeout = np.logical_or(timeout, (steps == newest) & (done == 0))
        ends = np.logical_or(done, timeout)
        last = np.where(ends.any(axis=1), ends.argmax(axis=1), self.n_steps - 1)
        mask = np.arange(self.n_steps) <= last[:, None]
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32)
        first = np.arange(len(steps)) * self.n_steps
        done_last = np.take_along_axis(done * (1 - timeout), last[:, None], axis=1).astype(np.float32)
        data = (
            self._normalize_obs(rows["obs"][first], env),
            rows["action"][first],
            self._normalize_obs(rows["next_obs"][first + last], env),
            done_last,
            (self._normalize_reward(reward, env) * discounts * mask).sum(axis=1, keepdims=True),
            self.gamma ** mask.sum(axis=1, keepdims=True).astype(np.float32),
        )
        return ReplayBufferSamples(*map(self.to_torch, data))  # type: ignore[arg-type]


class DictReplayBuffer(ReplayBuffer, _StandardDict):
    """`stable_baselines3.common.buffers.DictReplayBuffer`, with the rows in shared memory."""

    @staticmethod
    def _check(observation_space: Any, optimize_memory_usage: bool, handle_timeout_termination: bool) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise AssertionError(
                "DictReplayBuffer must be used with Dict obs space only: "
                f"observation_space is {observation_space}; use ReplayBuffer for it"
            )
        if optimize_memory_usage:
            raise AssertionError("DictReplayBuffer does not support optimize_memory_usage")

    def _observation_columns(self) -> Any:
        return {key: (shape, np.dtype(self.observation_space[key].dtype)) for key, shape in self.obs_shape.items()}

    def _observation_rows(self, observation: Any) -> Any:
        parts, leaves = self.observation_space.spaces, self._observation_leaves
        return {key: _rows_of(self.n_envs, observation[key], leaf, parts[key]) for key, leaf in leaves.items()}

    def _observations(self, name: str) -> Any:
        return {key: self._column(name, leaf, key) for key, leaf in self._observation_leaves.items()}

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        return self._samples_of(self._rows_at(batch_inds)[0], env)

    def _samples_of(self, rows: Any, env: Any) -> Any:
        def tensors(observations: Any) -> dict[str, Any]:
            normalized: Any = self._normalize_obs(observations, env)
            return {key: self.to_torch(part) for key, part in normalized.items()}

        return DictReplayBufferSamples(
            observations=tensors(rows["obs"]),
            actions=self.to_torch(rows["action"]),
            next_observations=tensors(rows["next_obs"]),
            dones=self.to_torch((rows["done"] * (1 - rows["timeout"])).reshape(-1, 1)),
            rewards=self.to_torch(self._normalize_reward(rows["reward"].reshape(-1, 1), env)),
        )


class HerReplayBuffer(_StandardHer, DictReplayBuffer):
    """`stable_baselines3.HerReplayBuffer`, with the rows and the ends of episodes in shared memory.

    One process adds: `add` raises RuntimeError if another process has added. Others may sample; while the adding
    process overwrites an episode, their goals may come from the episode that takes its place. `infos` belong to one
    process, so with ``copy_info_dict=True`` you cannot pass the buffer to another one. `dones` and `timeouts` are
    copies.
    """

    env: Any
    _episodes: Any  # SharedArray: ep_start, ep_length and marks of truncate_last_trajectory, then _current_ep_start

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share(np.zeros((3 * self.buffer_size + 1, self.n_envs), np.int64))
        self._own_steps = 0  # steps of the buffer when this process added last

    def _share(self, episodes: Array) -> None:
        self._episodes = SharedArray._make(self.shared._replay.arena, episodes.shape, np.int64, None)
        self._episodes.array[:] = episodes
        self._view()

    def _view(self) -> None:
        parts: Any = self._episodes.array[:-1].reshape(3, self.buffer_size, self.n_envs)
        self.ep_start, self.ep_length, self._cut = parts
        self._current_ep_start = self._episodes.array[-1]

    def reset(self) -> None:
        super().reset()
        self._episodes.array[:] = 0
        self._own_steps = 0

    def add(self, *args: Any, **kwargs: Any) -> None:
        if self._steps not in (0, self._own_steps):
            raise RuntimeError(
                f"another process has added to this buffer: it has {self._steps} steps, and had {self._own_steps} when "
                "this process added last. Only one process can add to a HerReplayBuffer"
            )
        self._cut[self.pos] = 0
        super().add(*args, **kwargs)
        self._own_steps = self._steps

    def _rows_of_environments(self, steps: Array, environments: Array) -> Any:
        rows, cut = self._ring.read(steps * self.n_envs + environments, 0), self._cut[steps, environments]
        rows["done"] = np.maximum(rows["done"], cut != 0)
        rows["timeout"] = np.maximum(rows["timeout"], cut > 1)
        return rows

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        return self._samples_of(self._rows_of_environments(batch_indices, env_indices), env)

    def _get_virtual_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        assert self.env is not None, (
            "HerReplayBuffer needs an env to compute rewards for virtual transitions: set_env()"
        )
        rows = self._rows_of_environments(batch_indices, env_indices)
        infos: Any = [{} for _ in batch_indices]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[batch_indices, env_indices])
        goals = self._sample_goals(batch_indices, env_indices)
        rows["obs"]["desired_goal"] = rows["next_obs"]["desired_goal"] = goals
        given = (rows["next_obs"]["achieved_goal"], goals, infos)
        rows["reward"] = self.env.env_method("compute_reward", *given, indices=[0])[0].astype(np.float32)
        return self._samples_of(rows, env)

    def truncate_last_trajectory(self) -> None:
        unfinished = np.flatnonzero(self._current_ep_start != self.pos)
        if not len(unfinished):
            return
        warnings.warn(
            "The last trajectory in the replay buffer will be truncated.\n"
            "If you are in the same episode as when the replay buffer was saved,\n"
            "you should use `truncate_last_trajectory=False` to avoid that issue.",
            stacklevel=2,
        )
        for environment in unfinished:
            self._cut[self.pos - 1, environment] = 2 if self.handle_timeout_termination else 1
            self._compute_episode_length(int(environment))

    @property
    def dones(self) -> Any:
        return np.maximum(super().dones, self._cut != 0)

    @property
    def timeouts(self) -> Any:
        return np.maximum(super().timeouts, self._cut > 1)

    def __getstate__(self) -> dict[str, Any]:
        is_passed = context.get_spawning_popen() is not None
        if is_passed and self.copy_info_dict:
            raise TypeError(
                "cannot pass a HerReplayBuffer with copy_info_dict=True to another process, which lacks infos"
            )
        state = DictReplayBuffer.__getstate__(self)
        for name in ("env", "ep_start", "ep_length", "_cut", "_current_ep_start"):
            del state[name]
        return state if is_passed else {**state, "_episodes": self._episodes.array.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        DictReplayBuffer.__setstate__(self, state)
        self.env = None
        if isinstance(self._episodes, np.ndarray):
            self._share(self._episodes)
        else:
            self._view()


def _broadcast(count: int, value: Any, leaf: _Leaf) -> Array:
    """Returns `count` rows of a column, cast and repeated like in an assignment to an array of that shape."""
    shape, dtype = leaf
    array: Array = np.asarray(value)
    if array.shape == (count, *shape):
        return array if array.dtype == dtype else array.astype(dtype)
    return np.broadcast_to(array, (count, *shape)).astype(dtype)


def _rows_of(count: int, observation: Any, leaf: _Leaf, space: Any) -> Array:
    if isinstance(space, spaces.Discrete):
        observation = np.asarray(observation).reshape(count, *leaf[0])
    return _broadcast(count, observation, leaf)


__dir__ = claim_names(globals())
