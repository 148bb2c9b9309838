"""Workers share a task queue and a result queue, and stop at sentinels. Written for multiprocessing.Queue.

Only the import line differs from a program for the standard library's `multiprocessing`.

    python examples/queue_workers.py
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from shmtree import multiprocessing as mp

WORKERS = 3
FRAMES = 12
HEIGHT, WIDTH = 480, 640


class Task(TypedDict):
    """One frame of a video."""

    number: int
    picture: NDArray[np.uint8]


class Result(TypedDict):
    """The result for a frame: the bounding box of the bright area, and a picture of its left and right edges."""

    number: int
    error: str | None
    brightness: float
    box: tuple[int, int, int, int] | None
    edges: NDArray[np.bool_] | None


def render(number: int) -> NDArray[np.uint8]:
    """Draws a bright square that moves through the picture. Frame 7 is damaged: it has no lines."""
    picture = np.full((HEIGHT if number != 7 else 0, WIDTH), 16, np.uint8)
    top, left = 20 * number, 40 * number
    picture[top : top + 100, left : left + 100] = 240
    return picture


def analyse(task: Task) -> Result:
    picture = task["picture"]
    if picture.size == 0:
        raise ValueError("the frame is empty")
    bright = picture > 128
    rows, columns = np.flatnonzero(bright.any(axis=1)), np.flatnonzero(bright.any(axis=0))
    return {
        "number": task["number"],
        "error": None,
        "brightness": float(picture.mean()),
        "box": (int(rows[0]), int(columns[0]), int(rows[-1]), int(columns[-1])),
        "edges": bright ^ np.roll(bright, 1, axis=1),
    }


def work(tasks: mp.Queue[Task | None], results: mp.Queue[Result | None]) -> None:
    """Runs one worker process until the sentinel arrives. A frame that fails must not end the worker."""
    while (task := tasks.get()) is not None:
        try:
            result = analyse(task)
        except ValueError as error:
            result = {"number": task["number"], "error": str(error), "brightness": 0.0, "box": None, "edges": None}
        results.put(result)
    results.put(None)


def main() -> None:
    tasks: mp.Queue[Task | None] = mp.Queue(maxsize=2 * WORKERS)  # limits how far rendering runs ahead
    results: mp.Queue[Result | None] = mp.Queue()
    workers = [mp.Process(target=work, args=(tasks, results)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()

    for number in range(FRAMES):
        tasks.put({"number": number, "picture": render(number)})
    for _ in workers:
        tasks.put(None)

    found: dict[int, Result] = {}
    running = WORKERS
    while running:
        result = results.get(timeout=60)
        if result is None:
            running -= 1
        else:
            found[result["number"]] = result
    for worker in workers:
        worker.join()

    for number, result in sorted(found.items()):
        if result["edges"] is None:
            print(f"frame {number:2}: {result['error']}")
        else:
            print(f"frame {number:2}: {result['brightness']:.2f} {result['box']} {result['edges'].sum()} edge pixels")
    print(f"{len(found)} frames by {WORKERS} workers, exit codes {[worker.exitcode for worker in workers]}")


if __name__ == "__main__":
    main()
