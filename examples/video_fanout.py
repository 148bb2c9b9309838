"""A camera sends 1080p frames to two detectors and a recorder, which all read the same copy of each frame.

The detectors are slower than the camera. One of them continues with the oldest frame in the ring (`on_lag="skip"`), the
other with the newest (`on_lag="latest"`). Neither blocks the camera. The recorder misses nothing: the camera waits for
it when the recorder lags by the length of the ring.

    python examples/video_fanout.py [--seconds 5] [--fps 60] [--detecting 0.04]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import numpy as np

import shmtree

HEIGHT, WIDTH = 1080, 1920
SIZE = 64  # side of the object, in pixels
RING = 8


def place_at(number: int) -> tuple[int, int]:
    """Returns the row and column of the object in a frame."""
    return number * 7 % (HEIGHT - SIZE), number * 13 % (WIDTH - SIZE)


def film(broadcast: shmtree.Broadcast, frames: int, fps: float, results: Any) -> None:
    background = np.random.default_rng(1).integers(0, 200, (HEIGHT, WIDTH, 3), np.uint8)
    began = time.monotonic()
    for number in range(frames):
        time.sleep(max(0.0, began + number / fps - time.monotonic()))
        frame = broadcast.new_empty((HEIGHT, WIDTH, 3), np.uint8)  # memory of the arena, so put() copies nothing
        frame[:] = background
        row, column = place_at(number)
        frame[row : row + SIZE, column : column + SIZE] = 255
        broadcast.put({"number": number, "time": time.monotonic(), "frame": frame})
    results.put(("camera", frames, frames / (time.monotonic() - began), 0, 0.0))
    broadcast.close()  # ends the loops of the readers


def detect(name: str, frames: shmtree.Subscriber, seconds: float, results: Any) -> None:
    """Finds the object. Sleeps for `seconds` in place of a neural network."""
    count, found, late, began = 0, 0, 0.0, time.monotonic()
    for item in frames:
        rows, columns = np.nonzero(item["frame"][::16, ::16, 0] == 255)
        row, column = place_at(item["number"])
        found += abs(16 * rows.min() - row) <= 16 and abs(16 * columns.min() - column) <= 16
        time.sleep(seconds)
        count, late = count + 1, late + time.monotonic() - item["time"]
    assert found == count
    results.put((name, count, count / (time.monotonic() - began), frames.missed, late / max(count, 1)))


def record(frames: shmtree.Subscriber, results: Any) -> None:
    """Keeps every 16th line and column of each frame, and checks that no frame is missing."""
    kept, late, began = [], 0.0, time.monotonic()
    for item in frames:
        assert item["number"] == len(kept)
        kept.append(item["frame"][::16, ::16].copy())
        late += time.monotonic() - item["time"]
    results.put(("recorder", len(kept), len(kept) / (time.monotonic() - began), frames.missed, late / len(kept)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fps", type=float, default=60.0)
    parser.add_argument("--detecting", type=float, default=0.04, help="seconds of a detector for each frame")
    given = parser.parse_args()

    broadcast, results = shmtree.Broadcast(RING, arena=shmtree.Arena(512 << 20)), shmtree.Queue()
    skips, newest = broadcast.subscribe(on_lag="skip"), broadcast.subscribe(on_lag="latest")
    everything = broadcast.subscribe()
    context = multiprocessing.get_context("fork")
    frames = max(1, round(given.seconds * given.fps))
    processes = [
        context.Process(target=detect, args=("detector that skips", skips, given.detecting, results)),
        context.Process(target=detect, args=("detector of the last", newest, given.detecting, results)),
        context.Process(target=record, args=(everything, results)),
        context.Process(target=film, args=(broadcast, frames, given.fps, results)),
    ]
    for process in processes:
        process.start()
    for name, count, fps, missed, late in sorted(results.get(timeout=given.seconds + 60) for _ in processes):
        print(f"{name}: {count} frames, {fps:.1f} fps, {missed} missed, {1000 * late:.1f} ms old when done")
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
