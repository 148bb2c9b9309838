"""Measures how fast a stream is recorded, and how fast `cp` copies the recording in the same folder.

The stream is put first as fast as the recorder writes it, then at 1 GB/s, which counts the missed messages. Recording
and `cp` take turns, because other load affects both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np

import shmtree
from shmtree.recording import Recording

BACKLOG = 64 << 20  # bytes that are put but not written yet
RATE = 1e9  # bytes per second


def record(path: Path, count: int, size: int, rate: float | None) -> float:
    """Returns the seconds from the first put until the file is complete; with a `rate`, until the last put."""
    arena = shmtree.Arena(2 << 30)
    name = f"bench-{uuid.uuid4().hex}"
    sender, receiver = arena.create_pair(capacity=8, name=name)
    message = {"obs": np.zeros(size, np.uint8)}
    command = [sys.executable, "-m", "shmtree", "record", name, "--out", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdout is not None
        recorder.stdout.readline()  # it looks
        begin = time.perf_counter()
        for number in range(count):
            sender.put(message)
            receiver.get()
            if rate is not None:
                time.sleep(max(begin + (number + 1) * size / rate - time.perf_counter(), 0))
            while rate is None and (number + 1) * size - os.stat(path).st_size > BACKLOG:
                time.sleep(0.0002)
        while rate is None and os.stat(path).st_size < count * size:
            time.sleep(0.0002)
        seconds = time.perf_counter() - begin
        sender.close()
        recorder.stdout.read()
        return seconds


def copy(path: Path) -> float:
    """Returns the seconds that `cp` takes."""
    copied = path.with_suffix(".copy")
    copied.unlink(missing_ok=True)
    begin = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", path, copied], check=True)
    seconds = time.perf_counter() - begin
    copied.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/dev/shm", help="folder for both files (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of each recording (default: %(default)s)")
    parser.add_argument("--message", type=int, default=1024, help="KiB of each message (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    size, count = options.message << 10, (options.mib << 10) // options.message
    recorded, copied = [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "run.mcap"
        for _ in range(options.turns):
            recorded.append(record(path, count, size, None))
            copied.append(copy(path))
        paced = count * size / record(path, count, size, RATE) / 1e9
        missed = sum(Recording(path).missed.values())
    rate, of_cp = (count * size / statistics.median(each) / 1e9 for each in (recorded, copied))
    print(f"recorded at {rate:.2f} GB/s, cp at {of_cp:.2f} GB/s: {rate / of_cp:.2f}")
    print(f"the recorder missed {missed} of {count} messages that were put at {paced:.2f} GB/s")


if __name__ == "__main__":
    main()
