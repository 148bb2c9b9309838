"""Puts and gets a few samples for callgrind. bench/instructions.py runs it and compares the counts.

Each piece of work runs a few times, to allocate memory and fill caches, and once more as the operand of `@=`, which
callgrind measures. No other code of the process uses this operator. Prints the versions of the
interpreter and of NumPy, then the name of each piece, in order.

With a name as argument, counts only that piece, which shows where its instructions go:

    valgrind --tool=callgrind --collect-atstart=no --toggle-collect=PyNumber_InPlaceMatrixMultiply \\
        python bench/python_instructions.py "put scalars"
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import shmtree

WARM_UP = 50


class Measured:
    result: Any = None  # kept, so that its destruction is not counted

    def __imatmul__(self, work: Callable[[], Any]) -> Measured:
        self.result = work()
        return self


def steps() -> dict[str, Any]:
    """Returns one step of an agent without images."""
    return {
        "obs": np.arange(17, dtype=np.float32),
        "next_obs": np.arange(17, dtype=np.float32),
        "action": np.arange(6, dtype=np.float32),
        "reward": 0.5,
        "terminated": False,
        "truncated": False,
        "info": {"episode": "ep-12", "step": 12345},
    }


def images() -> dict[str, Any]:
    """Returns one step of an agent with two frames."""
    frames = np.arange(2 * 84 * 84 * 4, dtype=np.uint8).reshape(2, 84, 84, 4)
    return {**steps(), "obs": frames[0].copy(), "next_obs": frames[1].copy()}


SAMPLES: dict[str, Any] = {
    "scalars": {"reward": 0.5, "action": 3, "terminated": False, "step": 12345, "episode": "ep-12"},
    "transition": steps(),
    "images": images(),
    "1 KB": bytes(1024),
}


def count(wanted: str | None) -> None:
    sender, receiver = shmtree.create_pair(capacity=8)
    measured = Measured()

    def count_calls(pieces: dict[str, Callable[[], Any]]) -> None:
        nonlocal measured
        for _ in range(WARM_UP):
            for work in pieces.values():
                work()
        for name, work in pieces.items():
            if wanted in (None, name):
                measured @= work
                measured.result = None
                print(name)
            else:
                work()

    # The first calls of `@=` fill the interpreter's caches. If a name repeats, the last call is used.
    for _ in range(3):
        count_calls({"nothing": partial(id, None)})
    for name, sample in SAMPLES.items():
        count_calls({f"put {name}": partial(sender.put, sample), f"get {name}": receiver.get})


def main() -> None:
    gc.disable()
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.libc_ver()[1]}, {platform.machine()}")
    count(sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()
