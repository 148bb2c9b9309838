"""Replay buffers of Stable-Baselines3 on shared memory: one changed import.

from shmtree.replay.sb3 import ReplayBuffer
model = DQN("MlpPolicy", environment, replay_buffer_class=ReplayBuffer)

They are what Stable-Baselines3's are, and are called as those are. `buffer.shared` is the `shmtree.replay.ReplayBuffer`
in which the rows are: others may draw from it, and add to it.
"""

from __future__ import annotations

from multiprocessing import context
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer as _Standard
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from . import _files
from ._buffer import ReplayBuffer as _Shared

__all__ = ["DictReplayBuffer", "ReplayBuffer"]


class ReplayBuffer(_Standard):
    """`stable_baselines3.common.buffers.ReplayBuffer`, with the rows in shared memory.

    An observation and its successor are stored as they are given; `optimize_memory_usage` changes nothing. A pickle,
    and a copy, has all rows, as by `save_replay_buffer`; only as an argument of a process it is the same buffer. Draws
    repeat with NumPy's seed, as theirs do.
    """

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
        self._check_space(observation_space)
        # The standard one's arrays of one row each are thrown away.
        super().__init__(1, *self._small(observation_space, action_space), device=device, n_envs=n_envs)
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = cast(Any, get_obs_shape(observation_space))
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.pos: int = 0
        self.handle_timeout_termination = handle_timeout_termination
        del self.observations, self.next_observations, self.actions, self.rewards, self.dones, self.timeouts
        columns = {
            "obs": self._columns(observation_space),
            "next_obs": self._columns(observation_space),
            "action": ((self.action_dim,), np.float32 if action_space.dtype == np.float64 else action_space.dtype),
            "reward": np.float32,
            "ends": np.float32,
        }
        self.shared = _Shared(
            self.buffer_size * n_envs, columns=columns, chunk=1, done=None, seed=np.random.randint(1 << 62)
        )

    @staticmethod
    def _check_space(observation_space: Any) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise TypeError(f"observation_space is {observation_space}: DictReplayBuffer is for spaces of that kind")

    @staticmethod
    def _small(observation_space: Any, action_space: Any) -> tuple[Any, Any]:
        return observation_space, action_space

    @staticmethod
    def _columns(space: Any) -> Any:
        return (space.shape, np.float32 if space.dtype == np.float64 else space.dtype)

    def _rows(self, observation: Any) -> Any:
        """As many rows as there are environments."""
        shape, dtype = self._columns(self.observation_space)
        return np.asarray(observation, dtype).reshape(self.n_envs, *shape)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        ends = np.array(done, np.float32)
        if self.handle_timeout_termination:
            ends *= [1 - bool(info.get("TimeLimit.truncated", False)) for info in infos]
        rows = {
            "obs": self._rows(obs),
            "next_obs": self._rows(next_obs),
            "action": np.asarray(action).reshape(self.n_envs, self.action_dim),
            "reward": np.asarray(reward, np.float32).reshape(self.n_envs),
            "ends": ends.reshape(self.n_envs),
        }
        self.shared.extend(rows)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        data = self.shared.sample(batch_size).data
        normalized: Any = self._normalize_obs
        return ReplayBufferSamples(
            self.to_torch(normalized(data["obs"], env)),
            self.to_torch(data["action"]),
            self.to_torch(normalized(data["next_obs"], env)),
            self.to_torch(data["ends"].reshape(-1, 1)),
            self.to_torch(self._normalize_reward(data["reward"].reshape(-1, 1), env)),
        )

    def size(self) -> int:
        return self.buffer_size if self.full else self.pos

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if context.get_spawning_popen() is None:
            state["shared"] = _files.to_bytes(self.shared)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.shared, dict):
            self.shared = _files.from_bytes(_Shared, self.shared)


class DictReplayBuffer(ReplayBuffer):
    """`stable_baselines3.common.buffers.DictReplayBuffer`, with the rows in shared memory."""

    @staticmethod
    def _check_space(observation_space: Any) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise TypeError(f"observation_space is {observation_space}, no Dict: ReplayBuffer is for others")

    @staticmethod
    def _small(observation_space: Any, action_space: Any) -> tuple[Any, Any]:
        return next(iter(observation_space.spaces.values())), action_space

    @staticmethod
    def _columns(space: Any) -> Any:
        return {key: ReplayBuffer._columns(part) for key, part in space.spaces.items()}

    def _rows(self, observation: Any) -> Any:
        columns = self._columns(self.observation_space)
        return {
            key: np.asarray(observation[key], dtype).reshape(self.n_envs, *shape)
            for key, (shape, dtype) in columns.items()
        }

    def sample(self, batch_size: int, env: Any = None) -> Any:
        data = self.shared.sample(batch_size).data

        def tensors(observations: Any) -> dict[str, torch.Tensor]:
            normalized: Any = self._normalize_obs(observations, env)
            return {key: self.to_torch(part) for key, part in normalized.items()}

        return DictReplayBufferSamples(
            observations=tensors(data["obs"]),
            actions=self.to_torch(data["action"]),
            next_observations=tensors(data["next_obs"]),
            dones=self.to_torch(data["ends"].reshape(-1, 1)),
            rewards=self.to_torch(self._normalize_reward(data["reward"].reshape(-1, 1), env)),
        )
