"""A pytest plugin that replaces a library's classes by those of shmtree before its tests import them.

SHMTREE_ORIGINAL names the library. The runner, run.py, sets it and starts pytest with this plugin.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import Any


def _replace(module: ModuleType, **classes: type) -> None:
    for name, cls in classes.items():
        if hasattr(module, name):
            setattr(module, name, cls)


def _sb3() -> None:
    from shmtree.replay import sb3
    from shmtree.sb3 import SubprocVecEnv

    ours = {name: getattr(sb3, name) for name in sb3.__all__}
    for name in ("", ".her", ".common.buffers", ".common.off_policy_algorithm"):
        _replace(importlib.import_module(f"stable_baselines3{name}"), **ours)
    _replace(importlib.import_module("stable_baselines3.common.vec_env"), SubprocVecEnv=SubprocVecEnv)


def _gymnasium() -> None:
    from shmtree.gymnasium import AsyncVectorEnv, PooledVectorEnv

    workers = int(os.environ.get("SHMTREE_WORKERS", 0))

    class Pooled(PooledVectorEnv):
        def __init__(self, env_fns: Any, *args: Any, **options: Any) -> None:
            super().__init__(env_fns, *args, workers=min(workers, len(env_fns)), **options)

    Pooled.__name__ = "AsyncVectorEnv"  # tests compare the repr
    _replace(importlib.import_module("gymnasium.vector"), AsyncVectorEnv=Pooled if workers else AsyncVectorEnv)


def _cpprb() -> None:
    import cpprb

    from shmtree.replay import cpprb as shim

    _replace(cpprb, **{name: getattr(shim, name) for name in shim.__all__ if hasattr(shim, name)})


def _torchrl() -> None:
    from shmtree.replay import torchrl as shim

    ours = {"LazyTensorStorage": shim.SharedStorage, "PrioritizedSampler": shim.PrioritizedSampler}
    # Replaced only in packages that tests import from, so that derived classes of TorchRL keep their bases.
    inside = ["", ".replay_buffers", ".replay_buffers.samplers", ".replay_buffers.storages"]
    for name in inside:
        _replace(importlib.import_module(f"torchrl.data{name}"), **ours)


def _py_sharedmemory() -> None:
    import py_sharedmemory

    from shmtree.compat import py_sharedmemory as shim

    # A fixture of the tests checks a closed sender for remaining blocks. Ours has none of its own.
    sender: Any = shim.SharedMemorySender
    sender._blocks, sender._pool, sender._mapped_in_flight, sender._ack_thread = {}, [], 0, None
    _replace(py_sharedmemory, **{name: getattr(shim, name) for name in shim.__all__})


_LIBRARIES = {
    "sb3": _sb3,
    "gymnasium": _gymnasium,
    "cpprb": _cpprb,
    "torchrl": _torchrl,
    "py-sharedmemory": _py_sharedmemory,
}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if (library := os.environ.get("SHMTREE_ORIGINAL")) is not None:
        _LIBRARIES[library]()
