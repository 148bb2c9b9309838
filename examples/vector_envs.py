"""Steps environments in two processes and adds their rows to a replay buffer. A process that crashes is replaced.

Requires gymnasium. With `copy=False`, observations are views of the batch that the workers write. Steps alternate
between two halves of it, so the observations before and after a step are valid together, and the buffer copies both.

    python examples/vector_envs.py
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shmtree.gymnasium import AsyncVectorEnv
from shmtree.replay import Episodes, ReplayBuffer

ENVIRONMENTS, WORKERS, LENGTH, STEPS = 6, 2, 20, 60
BUG = 25  # the simulator of environment 4 crashes in this step, once

COLUMNS = {
    "obs": ((120, 160, 3), np.uint8),
    "action": np.int64,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
}


class Simulator(gymnasium.Env[Any, Any]):
    """An environment with camera images, on a simulator that crashes if there is no file of this name yet."""

    observation_space = gymnasium.spaces.Box(0, 255, (120, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, crash: Path | None = None) -> None:
        self.crash = crash
        self.at = self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        self.total += 1
        if self.crash is not None and self.total == BUG and not self.crash.exists():
            self.crash.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.picture(), float(action), self.at == LENGTH, False, {}

    def picture(self) -> Any:
        return np.full((120, 160, 3), self.at, np.uint8)


def main() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # it names the worker that is replaced
    buffer = ReplayBuffer(1000, columns=COLUMNS, episodes=Episodes(next="obs"))
    with tempfile.TemporaryDirectory() as folder:
        makers = [
            functools.partial(Simulator, Path(folder, "crashed") if n == 4 else None) for n in range(ENVIRONMENTS)
        ]
        environments = AsyncVectorEnv(makers, workers=WORKERS, copy=False, restart=True)
        obs, _ = environments.reset()
        action = np.ones(ENVIRONMENTS, int)
        with buffer.vector_writer(ENVIRONMENTS, autoreset=environments.metadata["autoreset_mode"]) as writer:
            for _ in range(STEPS):
                after, reward, terminated, truncated, info = environments.step(action)
                row = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
                writer.add(row, final={"obs": after})
                obs = after
                if "restarted" in info:
                    print("restarted:", np.flatnonzero(info["restarted"]).tolist())
        environments.close()
    batch = buffer.sample(64)
    goes_on = ~(batch.data["terminated"] | batch.data["truncated"])
    steps = batch.data["next"]["obs"][goes_on, 0, 0, 0].astype(int) - batch.data["obs"][goes_on, 0, 0, 0]
    print("rows:", len(buffer), "steps of the pictures:", set(steps.tolist()))


if __name__ == "__main__":
    main()
