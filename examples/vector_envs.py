"""Steps environments in processes. When the system kills one, the program says which, and continues with new ones.

Requires gymnasium. With Gymnasium's own AsyncVectorEnv, the program gets an EOFError without the environment's number,
and then hangs in `close`.

    python examples/vector_envs.py
"""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import gymnasium
import numpy as np

import shmtree
from shmtree.gymnasium import AsyncVectorEnv

ENVIRONMENTS, STEPS = 3, 40
BUG = 25  # the simulator crashes at this step, in the first process that runs it


class Simulator(gymnasium.Env[Any, Any]):
    """An environment with camera images, on a simulator that sometimes crashes."""

    observation_space = gymnasium.spaces.Box(0, 255, (120, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, crashes: bool = False) -> None:
        self.crashes = crashes
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        if self.crashes and self.at == BUG:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.picture(), float(action), self.at == STEPS, False, {}

    def picture(self) -> Any:
        return np.full((120, 160, 3), self.at, np.uint8)


def run(environments: AsyncVectorEnv) -> float:
    """Returns the sum of the rewards of one episode of each environment."""
    environments.reset()
    total, ended = 0.0, np.zeros(ENVIRONMENTS, bool)
    while not ended.all():
        _, rewards, terminated, truncated, _ = environments.step(np.ones(ENVIRONMENTS, int))
        total += float(rewards[~ended].sum())
        ended |= terminated | truncated
    return total


def main() -> None:
    for attempt in range(2):
        makers = [functools.partial(Simulator, attempt == 0 and number == 1) for number in range(ENVIRONMENTS)]
        environments = AsyncVectorEnv(makers, shared_memory=False)
        try:
            print("rewards:", run(environments))
        except shmtree.PeerDied as error:
            print(str(error).partition(":")[0])
        finally:
            environments.close()


if __name__ == "__main__":
    main()
