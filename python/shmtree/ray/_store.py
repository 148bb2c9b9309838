"""Objects in Ray's store, each as one buffer that is read in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._codec.frames import pack, unpack


def put(obj: object) -> Any:
    """Stores an object in Ray's store as one buffer, independent of its structure.

    Args:
        obj: The object.

    Returns:
        Ray's reference to it, which any process of the cluster may `get`.

    Raises:
        NotPortable: The object contains something that is valid on this machine only.
        ObjectStoreFullError: (Ray's) The store has no space for it.
        OutOfDiskError: (Ray's) Ray would spill objects to files, and the disk is full, too.

    Other errors are those of `shmtree.pack`.
    """
    import ray

    frame: Any = pack(obj, portable=True)
    return ray.put(np.frombuffer(frame, np.uint8))


def get(ref: Any, *, timeout: float | None = None, copy: bool | None = None) -> Any:
    """Returns the object that `put` stored, or a list of objects for a list of references.

    Large arrays are read-only views of the store, which keeps the object while one of them is referenced; with
    ``copy=True`` they are copies.

    Args:
        ref: Result of `put`, or a list of such results.
        timeout: Seconds to wait; None waits indefinitely.
        copy: See `shmtree.unpack`.

    Raises:
        GetTimeoutError: (Ray's) There was no object after `timeout` seconds.

    Other errors of Ray are raised unchanged.
    """
    import ray

    frames = ray.get(ref, timeout=timeout)
    if isinstance(frames, list):
        return [unpack(frame, copy=copy, allow_pickle=True) for frame in frames]
    return unpack(frames, copy=copy, allow_pickle=True)
