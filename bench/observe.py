"""Measures the cost of observing: `python -m bench.observe`.

- for the observed processes: CPU time of puts and gets, in turns with and without an observer that takes ten snapshots
  a second. Wall-clock time on a busy machine would mostly show the load
- for the observer: a snapshot of 1,000 channels, and its table
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import threading
import time

import shmtree
from shmtree._ipc.observer import Observer
from shmtree.cli import screen

CHANNELS = 1000
MESSAGE = {"reward": 1.0, "step": 7, "obs": b"x" * 400}


def cost_of_being_observed(turns: int, count: int) -> tuple[float, float]:
    """Returns CPU seconds of a put and a get, alone and observed: lower quartiles, which other load disturbs less.

    Both ends are in one process. With two processes, the figure would include the CPU time of waiting, which shrinks
    when a third process is busy.
    """
    sender, receiver = shmtree.create_pair(capacity=64)

    def measure() -> float:
        begin = time.process_time()
        for _ in range(count):
            sender.put(MESSAGE)
            receiver.get()
        return time.process_time() - begin

    alone, observed = [], []
    command = [sys.executable, "-m", "shmtree", "top", "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as observer:
        assert observer.stdout is not None
        observer.stdout.readline()  # it has started to observe
        threading.Thread(target=observer.stdout.read, daemon=True).start()
        for _ in range(turns):
            observer.send_signal(signal.SIGSTOP)
            alone.append(measure())
            observer.send_signal(signal.SIGCONT)
            observed.append(measure())
        observer.kill()
    return statistics.quantiles(alone)[0] / count, statistics.quantiles(observed)[0] / count


def time_of_a_look(looks: int) -> tuple[float, float]:
    """Returns median wall-clock and CPU milliseconds of a snapshot of 1,000 channels with the table of `top`."""
    arena = shmtree.Arena(256 << 20)
    pairs = [arena.create_pair(capacity=8) for _ in range(CHANNELS)]
    observer = Observer()
    times: list[tuple[float, float]] = []
    for _ in range(looks):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        screen.blocks(observer.look(), height=50)
        times.append(((time.perf_counter() - begin) * 1e3, (time.process_time() - begin_cpu) * 1e3))
    assert len(pairs) == CHANNELS
    return statistics.median(each[0] for each in times), statistics.median(each[1] for each in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--turns", type=int, default=200, help="rounds with an observer, and as many without one (default: %(default)s)"
    )
    parser.add_argument("--messages", type=int, default=100_000, help="messages per round (default: %(default)s)")
    options = parser.parse_args()
    alone, observed = cost_of_being_observed(options.turns, options.messages)
    print(
        f"CPU of a put and a get: {alone * 1e6:.3f} us, observed {observed * 1e6:.3f} us, {observed / alone - 1:+.2%}"
    )
    clock, cpu = time_of_a_look(20)
    print(f"a snapshot of {CHANNELS} channels: {clock:.1f} ms, {cpu:.1f} ms of CPU")


if __name__ == "__main__":
    main()
