"""Compares vector environments: one process, one process for each environment, and several environments per process.

    python -m bench.vec_env_kinds [--kinds cheap,pixels,dict,slow] [--environments 8,64] [--seconds 1] [--rounds 3]
                                  [--workers 2] [--busy 4]

All variants of a row take turns. `slow` sleeps 1 to 20 ms in each step. The bound of `recv` is that of a simulation in
which nothing but the sleeps takes time. Writes a table to stdout, and the figures to bench/results/vec_env_kinds.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from bench import machine, markdown
from shmtree.gymnasium import AsyncVectorEnv as OurAsyncVectorEnv

FRAME = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1, 1, (16,), np.float32)
SPACES = {"pixels": FRAME, "dict": spaces.Dict({"image": FRAME, "position": VECTOR, "goal": VECTOR}), "slow": VECTOR}
SLOW_S = (0.001, 0.020)


class Ready(gymnasium.Env[Any, Any]):
    """Environment with a ready observation. It may sleep in each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, kind: str, number: int) -> None:
        self.observation_space = SPACES[kind]
        self.observation_space.seed(number)
        self.observation = self.observation_space.sample()
        self.random = np.random.default_rng(number) if kind == "slow" else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.random is not None:
            time.sleep(self.random.uniform(*SLOW_S))
        return self.observation, 1.0, False, False, {}


def makers(kind: str, count: int) -> list[Callable[[], Any]]:
    if kind == "cheap":
        return [lambda: gymnasium.make("CartPole-v1")] * count
    return [functools.partial(Ready, kind, number) for number in range(count)]


def stepped(environments: Any) -> Callable[[], int]:
    actions = np.ones(environments.num_envs, int)
    environments.reset()

    def step() -> int:
        environments.step(actions)
        return len(actions)

    return step


def received(environments: Any) -> Callable[[], int]:
    n: int = max(environments.num_envs // 4, 1)
    actions = np.ones(environments.num_envs, int)
    environments.reset()
    environments.send(actions, range(len(actions)))

    def step() -> int:
        environments.send(actions[:n], environments.recv(n)[4]["env_id"])
        return n

    return step


def bound(count: int, n: int, batches: int = 20_000) -> float:
    """Returns the steps per second if the first `n` of `count` slow environments always begin again together."""
    random = np.random.default_rng(1)
    ends = np.sort(random.uniform(*SLOW_S, count))
    for _ in range(batches):
        now = ends[n - 1]
        ends[:n] = now + random.uniform(*SLOW_S, n)
        ends.sort()
    return float(n * batches / now)


def variants(kind: str, count: int, workers: int) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    made = makers(kind, count)
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "Gymnasium Sync": (lambda: SyncVectorEnv(made), stepped),
        "Gymnasium Async": (lambda: AsyncVectorEnv(made), stepped),
        "shmtree, workers": (lambda: OurAsyncVectorEnv(made, workers=workers), stepped),
        "shmtree, views": (lambda: OurAsyncVectorEnv(made, workers=workers, copy=False), stepped),
        "shmtree, recv": (lambda: OurAsyncVectorEnv(made, workers=workers), received),
    }
    with contextlib.suppress(ImportError):
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

        from shmtree.sb3 import SubprocVecEnv as OurSubprocVecEnv

        found["SB3 Dummy"] = lambda: DummyVecEnv(made), stepped
        found["SB3 Subproc"] = lambda: SubprocVecEnv(made, "fork"), stepped
        found["shmtree, SB3"] = lambda: OurSubprocVecEnv(made, "fork", workers=workers), stepped
    return found


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(kind: str, count: int, workers: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Returns the medians of the rounds, in steps of single environments per second."""
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        steps = {}
        for name, (make, prepare) in variants(kind, count, workers).items():
            environments = make()
            stack.callback(environments.close)
            steps[name] = prepare(environments)
        for _ in range(rounds):
            for name, step in steps.items():
                done, began = 0, time.perf_counter()
                while (passed := time.perf_counter() - began) < seconds:
                    done += step()
                found.setdefault(name, []).append(done / passed)
    rates = {name: statistics.median(each) for name, each in found.items()}
    return {"kind": kind, "environments": count, "workers": workers, **rates}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.vec_env_kinds", description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default="cheap,pixels,dict,slow")
    parser.add_argument("--environments", default="8,64")
    parser.add_argument("--workers", type=int, default=2, help="workers; `slow` has one for each environment")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each variant and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside the benchmark")
    arguments = parser.parse_args()
    about = machine.describe({})
    about["versions"] |= {"gymnasium": importlib.metadata.version("gymnasium")}
    rows = []
    with busy(arguments.busy):
        for kind in arguments.kinds.split(","):
            for count in map(int, arguments.environments.split(",")):
                workers = count if kind == "slow" else min(arguments.workers, count)
                rows.append(measure(kind, count, workers, arguments.seconds, arguments.rounds))
    about["load_after"] = machine.load()
    names = list(rows[0])[3:]
    for row in rows:
        if row["kind"] == "slow":
            row["recv, bound"] = bound(row["environments"], max(row["environments"] // 4, 1))
            print(f"bound of recv with {row['environments']} slow environments: {row['recv, bound']:,.0f} steps/s")
    cells = [[f"{row['kind']}, {row['environments']}", *(f"{row[name]:,.0f}" for name in names)] for row in rows]
    print(machine.line(about))
    print(f"{machine.dated(about)}\n\n{markdown.table(['steps/s', *names], cells)}", end="")
    machine.save("vec_env_kinds", about, rows=rows)


if __name__ == "__main__":
    main()
