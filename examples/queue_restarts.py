"""Computes squares in worker processes. When all of them are killed, starts new ones for the jobs that are missing.

With a standard queue, `get` waits forever after the kill.

    python examples/queue_restarts.py
"""

from __future__ import annotations

import os
import signal

import shmtree
from shmtree import multiprocessing as mp

WORKERS, JOBS = 2, 10


def work(jobs: list[int], results: shmtree.Queue[tuple[int, int]], is_killed: bool) -> None:
    for job in jobs:
        if is_killed and job == jobs[-1]:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
        results.put((job, job * job))


def main() -> None:
    results: shmtree.Queue[tuple[int, int]] = shmtree.Queue(on_peer_death="raise")
    squares: dict[int, int] = {}
    is_first = True
    while len(squares) < JOBS:
        missing = [job for job in range(JOBS) if job not in squares]
        parts = [missing[number::WORKERS] for number in range(WORKERS)]
        workers = [mp.Process(target=work, args=(part, results, is_first)) for part in parts]
        for worker in workers:
            worker.start()
        try:
            while len(squares) < JOBS:
                job, square = results.get()
                squares[job] = square
        except shmtree.PeerDied as error:
            print(f"{len(error.pids)} workers were killed after {len(squares)} jobs")
        for worker in workers:
            worker.join()
        is_first = False
    print("sum of the squares:", sum(squares.values()))


if __name__ == "__main__":
    main()
