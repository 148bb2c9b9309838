"""Publishes weights to several readers: shmtree.Latest, a plain copy, a queue per reader, and memory with a lock.

    python -m bench.latest [--readers 8] [--megabytes 100] [--arrays 200] [--versions 20]

A version is a dict of arrays. This process times each publication, in turns with a copy of the same arrays into touched
memory, for comparison. A publication is one put per reader for queues, and a copy under a lock for an array or a
torch tensor in shared memory. Readers report how long a get took, and how old the version was when they had it. Writes
a table to stdout and the figures to bench/results/latest.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy as np

import shmtree
from bench import machine, markdown

Weights = dict[str, Any]
CONTEXT = multiprocessing.get_context("spawn")
STAMP = "stamp"  # first array of a version: the time at which it was published


def touch(weights: Weights) -> float:
    return sum(float(each[-1]) for each in weights.values())


def read_latest(latest: shmtree.Latest, results: Any, versions: int) -> None:
    version = 0
    weights: Weights
    while version < versions:
        weights = {}  # release the previous version first
        while latest.version <= version:
            time.sleep(0.0005)  # time a get that does not block
        begin = time.perf_counter()
        version, weights = latest.get(newer_than=version)
        end = time.perf_counter()
        touch(weights)
        results.put((end - begin, end - float(weights[STAMP][0])))
    results.put(None)


def read_queue(queue: Any, results: Any, versions: int) -> None:
    for _ in range(versions):
        weights = queue.get()
        end = time.perf_counter()
        touch(weights)
        results.put((0.0, end - float(weights[STAMP][0])))
    results.put(None)


class Locked:
    """All weights in one shared memory segment, copied in and out under a lock."""

    def __init__(self, name: str, lock: Any, version: Any) -> None:
        self._shared = shared_memory.SharedMemory(name)
        self._bytes: Any = np.ndarray(self._shared.size, np.uint8, self._shared.buf)
        self._lock = lock
        self._version = version

    def publish(self, weights: Weights) -> None:
        with self._lock:
            at = 0
            for each in weights.values():
                self._bytes[at : at + each.nbytes] = each.reshape(-1).view(np.uint8)
                at += each.nbytes
            self._version.value += 1

    def get(self, newer_than: int) -> tuple[int, Any]:
        while self._version.value <= newer_than:
            time.sleep(0.0005)
        with self._lock:
            return self._version.value, self._bytes.copy()


class LockedTensors:
    """All weights in a tensor in shared memory, copied under a lock. Readers copy into existing tensors."""

    def __init__(self, shared: Any, lock: Any, version: Any) -> None:
        self._shared, self._lock, self._version = shared, lock, version
        self._mine = shared.clone()

    def publish(self, weights: Weights) -> None:
        import torch

        with self._lock:
            at = 0
            for each in weights.values():
                self._shared[at : at + each.nbytes].copy_(torch.from_numpy(each.reshape(-1).view(np.uint8)))
                at += each.nbytes
            self._version.value += 1

    def get(self, newer_than: int) -> tuple[int, Any]:
        while self._version.value <= newer_than:
            time.sleep(0.0005)
        with self._lock:
            return self._version.value, self._mine.copy_(self._shared).numpy()


def read_locked(locked: Any, results: Any, versions: int) -> None:
    kind, *arguments = locked
    mine, version = kind(*arguments), 0
    while version < versions:
        begin = time.perf_counter()
        version, memory = mine.get(version)
        end = time.perf_counter()
        results.put((end - begin, end - float(memory[:8].view(np.float64)[0])))
    results.put(None)


Figures = tuple[list[float], list[float], list[float]]


def run(
    read: Callable[..., None], ends: list[Any], publish: Callable[[Weights], object], weights: Weights, versions: int
) -> Figures:
    """Returns the seconds of each publication and of each get, and the age of each received version."""
    results = CONTEXT.SimpleQueue()
    readers = [CONTEXT.Process(target=read, args=(end, results, versions)) for end in ends]
    for reader in readers:
        reader.start()
    time.sleep(2)  # until the readers block
    seconds = []
    for _ in range(versions):
        begin = time.perf_counter()
        weights[STAMP][:] = begin
        publish(weights)
        seconds.append(time.perf_counter() - begin)
        time.sleep(0.05)
    gets: list[float] = []
    ages: list[float] = []
    left = len(readers)
    while left:
        told = results.get()
        if told is None:
            left -= 1
        else:
            gets.append(told[0])
            ages.append(told[1])
    for reader in readers:
        reader.join()
    return seconds, gets, ages


def in_turns(weights: Weights, latest: shmtree.Latest, versions: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of copies and of publications, which take turns."""
    places = {name: np.ones_like(each) for name, each in weights.items()}
    copies, published = [], []
    for _ in range(versions):
        begin = time.perf_counter()
        for name, each in weights.items():
            np.copyto(places[name], each)
        middle = time.perf_counter()
        latest.publish(weights)
        copies.append(middle - begin)
        published.append(time.perf_counter() - middle)
    return copies, published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("readers", 8), ("megabytes", 100), ("arrays", 200), ("versions", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    elements = given.megabytes * 10**6 // 4 // given.arrays
    weights: Weights = {STAMP: np.zeros(1024)}
    weights.update((f"layer {i}", np.random.default_rng(i).random(elements, np.float32)) for i in range(given.arrays))
    figures: dict[str, Figures] = {}
    copies, published = in_turns(weights, shmtree.Latest(), given.versions)
    figures["copy into touched memory"] = copies[2:], [], []
    figures["shmtree.Latest, no readers"] = published[2:], [], []
    latest = shmtree.Latest()
    figures["shmtree.Latest"] = run(read_latest, [latest] * given.readers, latest.publish, weights, given.versions)
    latest.close()

    def put_to(ends: list[Any]) -> Callable[[Weights], object]:
        return lambda version: [end.put(version) for end in ends]

    arena = shmtree.Arena()
    pairs = [arena.create_pair(capacity=2) for _ in range(given.readers)]
    senders, receivers = [list(ends) for ends in zip(*pairs, strict=True)]
    figures["a shmtree pair per reader"] = run(read_queue, receivers, put_to(senders), weights, given.versions)
    queues = [CONTEXT.Queue(2) for _ in range(given.readers)]
    few = max(given.versions // 5, 2)
    figures["a multiprocessing.Queue per reader"] = run(read_queue, queues, put_to(queues), weights, few)
    nbytes = sum(each.nbytes for each in weights.values())
    memory = shared_memory.SharedMemory(create=True, size=nbytes)

    def run_locked(kind: Any, place: Any) -> Figures:
        shared = place, CONTEXT.Lock(), CONTEXT.Value("q", 0, lock=False)
        return run(read_locked, [(kind, *shared)] * given.readers, kind(*shared).publish, weights, given.versions)

    figures["shared memory and a lock"] = run_locked(Locked, memory.name)
    memory.unlink()
    if importlib.util.find_spec("torch"):
        import torch

        tensor: Any = torch.empty(nbytes, dtype=torch.uint8)
        tensor.share_memory_()
        figures["a shared tensor of torch and a lock"] = run_locked(LockedTensors, tensor)

    def told(seconds: list[float], unit: float) -> str:
        return f"{unit * statistics.median(seconds):.2f}" if seconds else ""

    limit = statistics.median(figures["copy into touched memory"][0])
    rows = [
        [name, told(publish, 1e3), f"{limit / statistics.median(publish):.2f}", told(gets, 1e6), told(ages, 1e3)]
        for name, (publish, gets, ages) in figures.items()
    ]
    print(markdown.table(["way", "publish ms", "of a copy", "get us", "age ms when read"], rows))
    machine.save("latest", machine.describe({}), seconds={name: list(each) for name, each in figures.items()})


if __name__ == "__main__":
    main()
