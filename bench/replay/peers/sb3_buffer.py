"""The buffer of Stable-Baselines3, which takes one row of each environment at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common import save_util
from stable_baselines3.common.buffers import ReplayBuffer

from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import Rows


class Peer(Base):
    requires = "stable_baselines3"

    def __init__(self, wanted: Wanted) -> None:
        for has, what in (
            (wanted.prioritized, "no priorities"),
            (wanted.shared, "one process only"),
            (wanted.stack, "no stacks"),
            (wanted.length, "no sequences"),
            (wanted.threads > 1, "one thread only"),
        ):
            if has:
                raise Unsupported(what)
        shape, kind = wanted.columns["obs"]
        low, high = (0, 255) if kind is np.uint8 else (-np.inf, np.inf)
        self.capacity = wanted.capacity
        self.spaces = gymnasium.spaces.Box(low, high, shape, kind), gymnasium.spaces.Discrete(4)
        self.buffer: Any = None
        self.environments = 0

    def _made(self, environments: int) -> Any:
        """Returns a buffer for this number of environments, which is fixed when a buffer is created."""
        if self.environments != environments:
            self.buffer = ReplayBuffer(self.capacity, *self.spaces, device="cpu", n_envs=environments)
            self.environments = environments
        return self.buffer

    def own_row(self, row: Rows) -> Any:
        return self.own_rows({name: np.asarray(value)[None] for name, value in row.items()})

    def own_rows(self, rows: Rows) -> Any:
        count = len(rows["done"])
        infos: list[Any] = [{}] * count
        return rows["obs"], rows["next_obs"], rows["action"][:, None], rows["reward"], rows["done"], infos

    def add(self, row: Any) -> None:
        self._made(1).add(*row)

    def extend(self, rows: Any, stream: int = 0) -> None:
        self._made(len(rows[-1])).add(*rows)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        save_util.save_to_pkl(path / "buffer.pkl", self.buffer)

    def load(self, path: Path) -> None:
        self.buffer = save_util.load_from_pkl(path / "buffer.pkl")
