"""What is sent and encoded. Each workload is a function without arguments that makes one message."""

from __future__ import annotations

from typing import Any

import numpy as np


def nested_sample() -> dict[str, Any]:
    """Twelve groups of observation, action, reward and episode facts, as one step of many agents is kept."""
    rng = np.random.default_rng(1)
    return {
        f"agent_{i}": {
            "obs": {"state": rng.normal(size=17).astype(np.float32), "mask": np.ones(8, np.bool_)},
            "action": rng.normal(size=6).astype(np.float32),
            "reward": 0.25 * i,
            "terminated": False,
            "info": {"episode": f"ep-{i}", "step": 1000 + i, "return": (1.5, i)},
        }
        for i in range(12)
    }


def twenty_small_arrays() -> dict[str, Any]:
    return {f"field_{i}": np.full(16, i, np.float32) for i in range(20)}


def five_scalars() -> dict[str, Any]:
    return {"reward": 1.0, "action": 3, "terminated": False, "step": 12345, "episode": "ep-12"}


def array_1mib() -> Any:
    return np.arange(1 << 18, dtype=np.float32)


def equal(a: Any, b: Any) -> bool:
    """Same types and same contents: a benchmark of wrong answers is worth nothing."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return bool(a == b)
