"""The workers of a pool sum images by starmap, with spawn: they read one shared array and add into others.

    python examples/pool_sums.py

The arguments are references of a few bytes, so neither the images nor the sums are copied. Every worker writes to the
same sums. An addition reads and writes, so it needs a lock. Each worker first adds up its own part without the lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import shmtree
from shmtree import multiprocessing as mp

IMAGES, SIDE = 600, 64
PART = 50

lock: Any = None


def use_lock(given: Any) -> None:
    """Stores the lock in a new worker. Locks can be passed only when a worker starts, not with a task."""
    global lock
    lock = given


def add_part(images: Any, sums: Any, histogram: Any, begin: int, end: int) -> int:
    part = images.array[begin:end]
    part_sums = part.sum(axis=0, dtype=np.int64)
    part_histogram = np.bincount(part.ravel(), minlength=256)
    with lock:
        sums.array += part_sums
        histogram.array += part_histogram
    return end - begin


def main() -> None:
    arena = shmtree.Arena()
    images = arena.array((IMAGES, SIDE, SIDE), np.uint8)
    sums = arena.array((SIDE, SIDE), np.int64)
    histogram = arena.array(256, np.int64)
    images.array[:] = np.random.default_rng(0).integers(0, 256, images.array.shape)

    context = mp.get_context("spawn")
    tasks = [(images, sums, histogram, begin, begin + PART) for begin in range(0, IMAGES, PART)]
    with context.Pool(3, initializer=use_lock, initargs=(context.Lock(),)) as pool:
        added = pool.starmap(add_part, tasks, chunksize=1)

    print(f"{sum(added)} images in {len(added)} parts")
    print("the same as here:", (sums.array == images.array.sum(axis=0, dtype=np.int64)).all())
    print(f"mean {sums.array.sum() / images.array.size:.1f}, {histogram.array.sum()} pixels counted")


if __name__ == "__main__":
    main()
