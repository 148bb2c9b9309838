"""An environment that counts, for tests of vector environments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

COUNT, STEPS = 3, 5
#: Actions with which the environment kills its process, never returns, and raises an error.
KILL, HANG, FAIL = 3, 4, 5


class Counting(gymnasium.Env):
    """Its observations contain its number, the episode and the step. An episode has three steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.at = 0

    def seen(self) -> Any:
        return np.full((84, 84, 4), 10 * self.number + self.at, np.uint8)

    def pid(self) -> int:
        return os.getpid()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self.seen(), {"seed": seed}

    def step(self, action: Any) -> Any:
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        while action == HANG:
            time.sleep(60)
        if action == FAIL:
            raise ValueError(f"environment {self.number} fails")
        self.at += 1
        return self.seen(), float(action), self.at == 3, False, {"at": self.at, "frame": self.seen()}


def environments() -> list[Any]:
    return [lambda number=number: Counting(number) for number in range(COUNT)]


def compare(ours: Any, theirs: Any) -> None:
    """Checks that both return the same values, and that our earlier values did not change."""
    kept = []
    for number in range(STEPS):
        actions = np.arange(COUNT) % 3
        said = [each.reset() if number == 0 else each.step(actions) for each in (ours, theirs)]
        np.testing.assert_equal(*said)
        kept.append((said[0], said[1]))
    for was, expected in kept:
        np.testing.assert_equal(was, expected)


def run_until_killed(program: str, method: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program that prints and kills itself. Returns once its workers have exited, too: they have its pipes."""
    (folder / "program.py").write_text(program)
    paths = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(folder / "program.py"), method],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
