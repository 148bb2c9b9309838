"""Compares ways to give one data set to several workers: memory, items per second, and times to build and start.

    python -m bench.shared_list [--items 100000] [--workers 8] [--rounds 3] [--ways list-fork shmtree-fork ...]

A sample is a dict with a path, a label, and up to 8 boxes, each a dict. In an epoch, each worker reads its part of the
shuffled indices, as the workers of a DataLoader do, and uses each box. Each way runs in its own process, in turns.
Memory is the sum of the proportional set sizes (PSS) of all processes, which counts each page once, less that of the
same processes without a data set. Writes a table to stdout and the figures to bench/results/shared_list.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shmtree
from bench import machine, markdown, processes

FIGURES = {
    "build_s": "build, s",
    "start_s": "start workers, s",
    "items_per_s": "items/s, all workers",
    "first_mb": "memory before the epoch, MB",
    "last_mb": "after it, MB",
    "data_mb": "data, MB",
}


def samples(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "path": f"/data/train/class-{number % 1000:04}/image-{number:08}.jpg",
            "label": number % 1000,
            "boxes": [
                {"category": each, "corners": [number, each, number + 10, each + 10]} for each in range(number % 9)
            ],
        }


class Pickles:
    """All pickles in one NumPy array, and an array of their ends, as Detectron2 does it."""

    def __init__(self, items: Iterator[Any]) -> None:
        parts = [np.frombuffer(pickle.dumps(item, -1), np.uint8) for item in items]
        self.ends = np.cumsum([len(part) for part in parts])
        self.data = np.concatenate(parts)

    def __getitem__(self, index: int) -> Any:
        start = 0 if index == 0 else self.ends[index - 1]
        return pickle.loads(self.data[start : self.ends[index]].data)


class Arrow:
    """A table in a file of Arrow's format, which each process maps."""

    def __init__(self, items: Iterator[Any]) -> None:
        import pyarrow as pa

        self.path = tempfile.mktemp(suffix=".arrow", dir=os.environ["BENCH_FOLDER"])
        table = pa.Table.from_pylist(list(items))
        with pa.OSFile(self.path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=len(table))
        self._batch: Any = None

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        self.path, self._batch = path, None

    def __getitem__(self, index: int) -> Any:
        if self._batch is None:
            import pyarrow as pa

            self._batch = pa.ipc.open_file(pa.memory_map(self.path)).get_batch(0)
        return self._batch.slice(index, 1).to_pylist()[0]


def managed(items: Iterator[Any]) -> Any:
    global _manager
    _manager = multiprocessing.get_context("spawn").Manager()
    return _manager.list(list(items))


_manager: Any = None


class Way(NamedTuple):
    """How workers get the data set."""

    build: Callable[[Iterator[Any]], Any]
    method: str
    needs: str = "shmtree"
    share: float = 1.0  # of the indices; a slow way reads fewer


WAYS = {
    "list-fork": Way(list, "fork"),
    "list-spawn": Way(list, "spawn"),
    "pickles-fork": Way(Pickles, "fork"),
    "pickles-spawn": Way(Pickles, "spawn"),
    "arrow-spawn": Way(Arrow, "spawn", "pyarrow", 0.1),
    "manager-spawn": Way(managed, "spawn", share=0.1),
    "shmtree-fork": Way(shmtree.SharedList, "fork"),
    "shmtree-spawn": Way(shmtree.SharedList, "spawn"),
}


def work(connection: Any, data: Any, indices: Sequence[int]) -> None:
    processes.end_with_parent()
    use(data[indices[0]])
    connection.send("ready")
    connection.recv()
    began = time.perf_counter()
    total = 0
    for index in indices:
        total += use(data[index])
    connection.send((time.perf_counter() - began, total))
    connection.recv()


def use(item: dict[str, Any]) -> int:
    total: int = item["label"] + sum(box["corners"][1] for box in item["boxes"])
    return total


def pss_bytes(pids: list[int]) -> int:
    """Returns the sum of the proportional set sizes of these processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def measure(name: str, count: int, workers: int) -> dict[str, float]:
    way = WAYS[name]
    began = time.perf_counter()
    data = way.build(samples(count))
    built = time.perf_counter() - began
    shuffled = array("q", range(count))  # ints of a list would count as memory
    random.Random(0).shuffle(shuffled)
    part = max(1, int(count / workers * way.share))
    context: Any = multiprocessing.get_context(way.method)
    pipes, children = [], []
    began = time.perf_counter()
    for number in range(workers):
        mine, theirs = context.Pipe()
        children.append(
            context.Process(target=work, args=(theirs, data, shuffled[number * part : (number + 1) * part]))
        )
        children[-1].start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    started = time.perf_counter() - began
    pids = [os.getpid(), *processes.descendants(os.getpid())]
    first = pss_bytes(pids)
    for pipe in pipes:
        pipe.send("go")
    seconds, totals = zip(*(pipe.recv() for pipe in pipes), strict=True)
    last = pss_bytes(pids)
    for pipe in pipes:
        pipe.send("end")
    for child in children:
        child.join()
    expected = sum(index % 1000 + sum(range(index % 9)) for index in shuffled[: workers * part])
    if sum(totals) != expected:
        raise RuntimeError("the workers have read wrong values")
    return {
        "build_s": built,
        "start_s": started,
        "items_per_s": workers * part / max(seconds),
        "first_mb": first / 1e6,
        "last_mb": last / 1e6,
        "data_mb": getattr(data, "nbytes", 0) / 1e6,
    }


def measure_apart(name: str, count: int, workers: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.shared_list", "--one", name]
    command += ["--items", str(count), "--workers", str(workers)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "BENCH_FOLDER": folder}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    made: dict[str, float] = json.loads(done.stdout)
    return made


def compare(names: list[str], count: int, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Measures the ways in turns, and returns a row of medians for each. Subtracts the memory of a run of few items."""
    base = {name: measure_apart(name, workers * 10, workers) for name in names}
    runs = [{name: measure_apart(name, count, workers) for name in names} for _ in range(rounds)]
    rows = []
    for name in names:
        medians = {key: statistics.median(run[name][key] for run in runs) for key in FIGURES}
        for key in ("first_mb", "last_mb"):
            medians[key] -= base[name][key]
        rows.append({"way": name, "workers": workers, "items": count, **medians})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cells = [[row["way"], *(f"{row[key]:,.4g}" for key in FIGURES)] for row in rows]
    return markdown.table(["way", *FIGURES.values()], cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.shared_list", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=100_000, help="samples of the data set")
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the medians are shown")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="ways to measure")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.items, arguments.workers)))
        return
    names = [name for name in arguments.ways if importlib.util.find_spec(WAYS[name].needs)]
    about = machine.describe({})
    rows = compare(names, arguments.items, arguments.workers, arguments.rounds)
    print(machine.line(about))
    print(table(rows), end="")
    for name in arguments.ways:
        if name not in names:
            print(f"- {name}: {WAYS[name].needs} is not installed")
    machine.save("shared_list", about, rows=rows)


if __name__ == "__main__":
    main()
