"""Compares vector environments of Stable-Baselines3 and Gymnasium on standard pipes and on ours.

    python -m bench.vec_envs [--environments 8] [--steps 300] [--rounds 5]

Environments return ready frames of 84 x 84 x 4 uint8. So the figures show the transfer of an action to its environment,
and of the result back. Both variants exist in this process at once and take turns, in both orders. Writes a table to
stdout and the figures to bench/results/vec_envs.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv

from bench import machine, markdown
from shmtree.gymnasium import AsyncVectorEnv as OurAsyncVectorEnv
from shmtree.sb3 import SubprocVecEnv as OurSubprocVecEnv

ACTIONS = 4
PIPES = ("standard", "shmtree")


class Frames(gymnasium.Env[Any, Any]):
    """Environment with a ready frame as its observation. All pixels have the number of the step."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def __init__(self) -> None:
        self.frames = [np.full((84, 84, 4), value, np.uint8) for value in range(256)]
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self.frames[self.at % 256], float(action), False, False, {}


def subproc(pipes: str, count: int) -> Any:
    made_by = OurSubprocVecEnv if pipes == "shmtree" else SubprocVecEnv
    return made_by([Frames] * count)


def asynchronous(shared_memory: bool) -> Callable[[str, int], Any]:
    def make(pipes: str, count: int) -> Any:
        made_by = OurAsyncVectorEnv if pipes == "shmtree" else AsyncVectorEnv
        return made_by([Frames] * count, shared_memory=shared_memory)

    return make


KINDS = {
    "SubprocVecEnv": subproc,
    "AsyncVectorEnv(shared_memory=False)": asynchronous(False),
    "AsyncVectorEnv(shared_memory=True)": asynchronous(True),
}


def steps_per_s(environments: Any, count: int, steps: int) -> float:
    actions = np.arange(count) % ACTIONS
    environments.reset()
    began = time.perf_counter()
    for number in range(1, steps + 1):
        observations = environments.step(actions)[0]
        if observations[-1, 0, 0, 0] != number % 256:
            raise RuntimeError(f"the observation of step {number} belongs to another environment or step")
    return steps / (time.perf_counter() - began)


def measure(kind: str, count: int, steps: int, rounds: int) -> dict[str, Any]:
    """Returns the medians of the rounds, and of their ratios."""
    with contextlib.ExitStack() as stack:
        made = {which: KINDS[kind](which, count) for which in PIPES}
        for environments in made.values():
            stack.callback(environments.close)
            steps_per_s(environments, count, steps // 4 or 1)
        orders = [PIPES if number % 2 == 0 else PIPES[::-1] for number in range(rounds)]
        found = [{which: steps_per_s(made[which], count, steps) for which in order} for order in orders]
    medians = {which: statistics.median(each[which] for each in found) for which in PIPES}
    return {"kind": kind, **medians, "ratio": statistics.median(each["shmtree"] / each["standard"] for each in found)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.vec_envs", description=__doc__.partition("\n")[0])
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    arguments = parser.parse_args()
    about = machine.describe({})
    about["versions"] |= {name: importlib.metadata.version(name) for name in ("gymnasium", "stable_baselines3")}
    rows = [measure(kind, arguments.environments, arguments.steps, arguments.rounds) for kind in KINDS]
    about["load_after"] = machine.load()
    print(machine.line(about))
    print(f"{machine.dated(about)}Medians of {arguments.rounds} rounds.\n\n{table(rows)}", end="")
    machine.save("vec_envs", about, rows=rows)


def table(rows: list[dict[str, Any]]) -> str:
    head = ["steps/s of all environments", "standard pipes", "shmtree", "ratio"]
    cells = [[row["kind"], f"{row['standard']:.0f}", f"{row['shmtree']:.0f}", f"{row['ratio']:.1f}"] for row in rows]
    return markdown.table(head, cells)


if __name__ == "__main__":
    main()
