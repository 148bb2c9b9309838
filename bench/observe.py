"""What looking in costs: `python -m bench.observe`.

- the observed: CPU time for each message of a sender and a receiver, in turns with and without an observer that looks
  ten times a second. CPU time, since on a busy machine time on the clock says more of others
- the observer: a look at 1,000 channels, and its table
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import shmtree
from shmtree import _shown
from shmtree._observe import Observer

CHANNELS = 1000
MESSAGE = {"reward": 1.0, "step": 7, "obs": b"x" * 400}


def send(sender: shmtree.Sender, told: Connection) -> None:
    for count in iter(told.recv, 0):
        begin = time.process_time()
        for _ in range(count):
            sender.put(MESSAGE)
        told.send(time.process_time() - begin)


def receive(receiver: shmtree.Receiver, told: Connection) -> None:
    for count in iter(told.recv, 0):
        begin = time.process_time()
        for _ in range(count):
            receiver.get()
        told.send(time.process_time() - begin)


def cost_of_being_observed(turns: int, count: int) -> tuple[float, float]:
    """Microseconds of CPU for each message of both together, without and with an observer: medians of the turns."""
    sender, receiver = shmtree.create_pair(capacity=64)
    pipes = [mp.Pipe() for _ in range(2)]
    for act, end, (_, theirs) in zip((send, receive), (sender, receiver), pipes):
        mp.Process(target=act, args=(end, theirs), daemon=True).start()
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns):
        is_observed = turn % 2 == 1
        command = [sys.executable, "-m", "shmtree", "top", "--json", "--interval", "0.1"]
        observer = subprocess.Popen(command, stdout=subprocess.DEVNULL) if is_observed else None
        time.sleep(1.0)  # until it looks; without one, too
        for ours, _ in pipes:
            ours.send(count)
        times[is_observed].append(sum(ours.recv() for ours, _ in pipes) / count * 1e6)
        if observer is not None:
            observer.kill()
            observer.wait()
    for ours, _ in pipes:
        ours.send(0)
    return statistics.median(times[False]), statistics.median(times[True])


def time_of_a_look(looks: int) -> tuple[float, float]:
    """Milliseconds for a look at 1,000 channels, with the table of `top`: medians, on the clock and of CPU."""
    arena = shmtree.Arena(256 << 20)
    pairs = [arena.create_pair(capacity=8) for _ in range(CHANNELS)]
    observer = Observer()
    times: list[tuple[float, float]] = []
    for _ in range(looks):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        _shown.top(observer.look())
        times.append(((time.perf_counter() - begin) * 1e3, (time.process_time() - begin_cpu) * 1e3))
    assert len(pairs) == CHANNELS
    return statistics.median(each[0] for each in times), statistics.median(each[1] for each in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="with an observer, and as many without (%(default)s)")
    parser.add_argument("--messages", type=int, default=200_000, help="of each turn (%(default)s)")
    options = parser.parse_args()
    without, observed = cost_of_being_observed(options.turns, options.messages)
    print(f"CPU of a message: {without:.3f} us, observed {observed:.3f} us ({observed / without - 1:+.2%})")
    clock, cpu = time_of_a_look(20)
    print(f"a look at {CHANNELS} channels: {clock:.1f} ms, {cpu:.1f} ms of CPU")


if __name__ == "__main__":
    main()
