"""Workers of a DataLoader read one data set in shared memory, and their own memory does not grow with it.

    python examples/shared_dataset.py

Each sample has a name, a nested list of boxes, and an image of its own size. Beside each batch, a worker reports how
much memory it has written to outside of shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import shmtree
from shmtree import multiprocessing as mp


def samples(count: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    for number in range(count):
        height, width = (int(side) for side in random.integers(8, 24, 2))
        yield {
            "name": f"image-{number:06}.jpg",
            "boxes": [{"label": number % 7, "corners": (0, 0, width, height)} for _ in range(number % 5)],
            "pixels": np.full((height, width, 3), number % 251, np.uint8),
        }


def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "means": np.array([sample["pixels"].mean() for sample in batch]),
        "boxes": sum(len(sample["boxes"]) for sample in batch),
        "pid": os.getpid(),
        "own_bytes": own_bytes(),
    }


def own_bytes() -> int:
    """Returns the bytes that this process has written to and shares with no other process."""
    total, is_shared = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                is_shared = "memfd:" in line
            elif key == "Private_Dirty:" and not is_shared:
                total += int(rest.split()[0]) * 1024
    return total


def main() -> None:
    data = shmtree.SharedList(samples(40_000))
    print(f"{len(data)} samples in {data.nbytes >> 20} MiB of shared memory")
    loader = DataLoader(
        data,
        batch_size=500,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        multiprocessing_context=mp.get_context("spawn"),
    )
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    images = boxes = 0
    for batch in loader:
        images += len(batch["means"])
        boxes += batch["boxes"]
        first.setdefault(batch["pid"], batch["own_bytes"])
        last[batch["pid"]] = batch["own_bytes"]
    print(f"{images} images, {boxes} boxes")
    grown = max(last[pid] - first[pid] for pid in first)
    print(f"a worker grew by less than 10 MiB: {grown < 10 << 20}")


if __name__ == "__main__":
    main()
