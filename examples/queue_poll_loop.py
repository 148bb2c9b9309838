"""A camera process and a display that polls it with get_nowait once per frame: written for multiprocessing.Queue.

The display must never wait, so it takes what is there and shows the newest; the camera must not wait either, so it
drops frames while the display lags. Commands go the other way and are polled too. Only the import line is different
from a program of the standard library's `multiprocessing`.

    python examples/queue_poll_loop.py
"""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np

from shmtree import multiprocessing as mp

CAMERA_RATE, DISPLAY_RATE = 120, 60  # frames per second
HEIGHT, WIDTH = 480, 640
EXPOSURES = [1.0, 2.0, 0.5]  # what somebody at the display chooses, one after the other


def capture(number: int, exposure: float, rng: np.random.Generator) -> dict[str, Any]:
    picture = rng.integers(0, 20, (HEIGHT, WIDTH, 3), np.uint8)
    column = 4 * number % (WIDTH - 40)
    picture[200:280, column : column + 40] = int(100 * exposure)
    return {"number": number, "exposure": exposure, "picture": picture}


def camera(frames: mp.Queue[dict[str, Any]], commands: mp.Queue[tuple[str, float]]) -> None:
    """The camera process: a frame every 1/120 s, until it is told to stop."""
    rng = np.random.default_rng(0)
    exposure, number, dropped = EXPOSURES[0], 0, 0
    while True:
        try:
            command, value = commands.get_nowait()
            if command == "stop":
                break
            exposure = value
        except queue.Empty:
            pass
        try:
            frames.put_nowait(capture(number, exposure, rng))
        except queue.Full:
            dropped += 1
        number += 1
        time.sleep(1 / CAMERA_RATE)
    frames.put({"captured": number, "dropped": dropped})


class Display:
    """What is on the screen, and what has been there."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []  # exposures and the peaks of the pictures, each once
        self.newest = -1
        self.shown = self.skipped = 0
        self.in_order = True

    def show(self, frame: dict[str, Any], skipped: int) -> None:
        self.in_order &= frame["number"] > self.newest
        self.newest = frame["number"]
        self.shown += 1
        self.skipped += skipped
        look = (frame["exposure"], int(frame["picture"].max()))
        if look not in self.seen:
            self.seen.append(look)


def take_all(frames: mp.Queue[dict[str, Any]]) -> list[dict[str, Any]]:
    """What has come since the last frame of the display; often nothing."""
    taken = []
    while True:
        try:
            taken.append(frames.get_nowait())
        except queue.Empty:
            return taken


def main() -> None:
    frames: mp.Queue[dict[str, Any]] = mp.Queue(maxsize=4)
    commands: mp.Queue[tuple[str, float]] = mp.Queue()
    process = mp.Process(target=camera, args=(frames, commands))
    process.start()

    display = Display()
    chosen = 1
    report: dict[str, Any] | None = None
    while report is None:  # once per frame of the display
        taken = take_all(frames)
        if taken and "captured" in taken[-1]:
            report = taken.pop()
        if taken:
            display.show(taken[-1], skipped=len(taken) - 1)
        if len(display.seen) == chosen:  # somebody has looked long enough
            commands.put(("exposure", EXPOSURES[chosen]) if chosen < len(EXPOSURES) else ("stop", 0.0))
            chosen += 1
        time.sleep(1 / DISPLAY_RATE)
    process.join()

    for exposure, peak in display.seen:
        print(f"exposure {exposure}: peak {peak}")
    print(f"in order: {display.in_order}, exit code: {process.exitcode}")
    print(f"all accounted for: {display.shown + display.skipped + report['dropped'] == report['captured']}")


if __name__ == "__main__":
    main()
