"""Objects in Ray's store, each as one buffer that is read in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._codec.frames import pack, unpack


def put(obj: object) -> Any:
    """Stores an object, and returns Ray's reference of it, which any process of the cluster may `get`.

    It is one buffer there, whatever it is made of. What cannot be packed raises as `shmtree.pack` does, and what
    means something on this machine only raises NotPortable. A store without room for it raises Ray's
    ObjectStoreFullError, or OutOfDiskError where Ray would go on by files and the disk is full too.
    """
    import ray

    frame: Any = pack(obj, portable=True)
    return ray.put(np.frombuffer(frame, np.uint8))


def get(ref: Any, *, timeout: float | None = None, copy: bool | None = None) -> Any:
    """The object that `put` stored, or a list of them for a list of references.

    Large arrays are read-only views of the store, which keeps the object for as long as one is held; with copy=True
    they are copies. Ray's errors are raised as they are: GetTimeoutError after `timeout` seconds.
    """
    import ray

    frames = ray.get(ref, timeout=timeout)
    if isinstance(frames, list):
        return [unpack(frame, copy=copy, allow_pickle=True) for frame in frames]
    return unpack(frames, copy=copy, allow_pickle=True)
