"""A display polls a camera process with get_nowait once per frame. Written for multiprocessing.Queue.

The display must never block, so it takes all available frames and shows the newest. The camera must not block either,
so it drops frames while the display lags. Commands go the other way and are polled too. Only the import line differs
from a program for the standard library's `multiprocessing`.

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
EXPOSURES = [1.0, 2.0, 0.5]  # chosen at the display, one after the other


def capture(number: int, exposure: float, rng: np.random.Generator) -> dict[str, Any]:
    picture = rng.integers(0, 20, (HEIGHT, WIDTH, 3), np.uint8)
    column = 4 * number % (WIDTH - 40)
    picture[200:280, column : column + 40] = int(100 * exposure)
    return {"number": number, "exposure": exposure, "picture": picture}


def camera(frames: mp.Queue[dict[str, Any]], commands: mp.Queue[tuple[str, float]]) -> None:
    """Runs the camera process: a frame every 1/120 s, until a stop command arrives."""
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
    """The content of the screen, and its history."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []  # distinct exposures with the peaks of the pictures
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
    """Returns the frames that have arrived since the display's last frame; often none."""
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
    while report is None:  # one iteration per frame of the display
        taken = take_all(frames)
        if taken and "captured" in taken[-1]:
            report = taken.pop()
        if taken:
            display.show(taken[-1], skipped=len(taken) - 1)
        if len(display.seen) == chosen:  # the user has seen this exposure
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
