"""Workers with the standard multiprocessing. `shmtree run` moves their frames through shared memory without an edit.

shmtree run examples/unmodified_workers.py
shmtree run --profile examples/unmodified_workers.py    what that would save
"""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import numpy as np

FRAMES = 200


def work(frames: mp.Queue[Any], results: mp.Queue[Any]) -> None:
    while (frame := frames.get()) is not None:
        results.put({"mean": float(frame.mean()), "row": frame[0]})


def main() -> None:
    frames: mp.Queue[Any] = mp.Queue(maxsize=8)
    results: mp.Queue[Any] = mp.Queue()
    workers = [mp.Process(target=work, args=(frames, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for number in range(FRAMES):
        frames.put(np.full((480, 640), number, np.float32))
    for _ in workers:
        frames.put(None)
    means = [results.get()["mean"] for _ in range(FRAMES)]
    for worker in workers:
        worker.join()
    print(f"{FRAMES} frames, mean {sum(means) / FRAMES}")


if __name__ == "__main__":
    main()
