"""Compares pools and executors with standard queues and with shmtree's.

    python -m bench.pools [--seconds 0.5] [--rounds 5] [--workers 2] [kinds]

Tasks return their argument: a small int, or an array of 1 MB. With 1 MB, the tasks of the executor get an int and
return an array, because an executor always sends its calls through a standard queue. The row for joblib uses its
multiprocessing backend with one task per message, and appears only if joblib is installed. Both pools exist at once and
are measured in turns. Writes a table to stdout and the figures to bench/results/pools.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import multiprocessing as standard
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from bench import machine, markdown
from shmtree import multiprocessing as ours

ARRAY = np.arange(1 << 17, dtype=np.float64)
SIZES: dict[str, Any] = {"int": 1, "1 MB": ARRAY}
CONTEXTS: dict[str, Any] = {"standard": standard.get_context("fork"), "shmtree": ours.get_context("fork")}

#: Runs that many tasks with an object.
Run = Callable[[Any, int], None]


def same(item: Any) -> Any:
    return item


def array_of(item: int) -> Any:
    return ARRAY


def check(results: list[Any], item: Any) -> None:
    last = results[-1]
    if (last.nbytes if isinstance(item, np.ndarray) else last) != (
        item.nbytes if isinstance(item, np.ndarray) else item
    ):
        raise RuntimeError("the result belongs to another task")


@contextlib.contextmanager
def pool(context: Any, workers: int, run: Callable[[Any, Any, int], list[Any]]) -> Iterator[Run]:
    with context.Pool(workers) as made:
        yield lambda item, count: check(run(made, item, count), item)


def consumed(results: Any) -> list[Any]:
    last = None
    for last in results:  # noqa: B007 - results of 1 MB are not kept
        pass
    return [last]


POOLS: dict[str, Callable[[Any, Any, int], list[Any]]] = {
    "apply": lambda pool, item, count: consumed(pool.apply(same, (item,)) for _ in range(count)),
    "map": lambda pool, item, count: pool.map(same, [item] * count, chunksize=1),
    "imap": lambda pool, item, count: consumed(pool.imap(same, [item] * count)),
    "imap_unordered": lambda pool, item, count: consumed(pool.imap_unordered(same, [item] * count)),
}


@contextlib.contextmanager
def joblib_backend(context: Any, workers: int) -> Iterator[Run]:
    joblib = importlib.import_module("joblib")  # optional dependency
    with joblib.Parallel(workers, backend=context, batch_size=1, max_nbytes=None) as parallel:
        yield lambda item, count: check(parallel(joblib.delayed(same)(item) for _ in range(count)), item)


@contextlib.contextmanager
def executor(context: Any, workers: int) -> Iterator[Run]:
    with ProcessPoolExecutor(workers, context) as made:

        def run(item: Any, count: int) -> None:
            if isinstance(item, np.ndarray):
                check(consumed(made.map(array_of, range(count))), item)
            else:
                check(consumed(made.map(same, [item] * count)), item)

        yield run


def kinds() -> dict[str, Callable[[Any, int], contextlib.AbstractContextManager[Run]]]:
    made: dict[str, Callable[[Any, int], contextlib.AbstractContextManager[Run]]] = {
        name: functools.partial(pool, run=run) for name, run in POOLS.items()
    }
    if importlib.util.find_spec("joblib"):
        made["joblib"] = joblib_backend
    made["executor"] = executor
    return made


def microseconds(run: Run, item: Any, seconds: float, count: int) -> float:
    """Returns microseconds per task. Runs `count` tasks at a time until that many seconds have passed."""
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        run(item, count)
        done += count
    return (time.perf_counter() - began) / done * 1e6


def measure(kind: str, size: str, seconds: float, rounds: int, workers: int) -> dict[str, Any]:
    """Returns the medians of the rounds, and of their ratios."""
    item, count = SIZES[size], 200 if size == "int" else 20
    with contextlib.ExitStack() as stack:
        runs = {which: stack.enter_context(kinds()[kind](made, workers)) for which, made in CONTEXTS.items()}
        for run in runs.values():
            microseconds(run, item, seconds / 4, count)
        found = [{which: microseconds(run, item, seconds, count) for which, run in runs.items()} for _ in range(rounds)]
    medians = {which: statistics.median(each[which] for each in found) for which in CONTEXTS}
    ratio = statistics.median(each["shmtree"] / each["standard"] for each in found)
    return {"kind": kind, "size": size, **medians, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.pools", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=list(kinds()), help=f"pools to measure: {', '.join(kinds())}")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    parser.add_argument("--workers", type=int, default=2, help="workers of each pool")
    given = parser.parse_args()
    rows = [measure(kind, size, given.seconds, given.rounds, given.workers) for kind in given.kinds for size in SIZES]
    about = machine.describe({})
    print(machine.line(about))
    print(table(rows), end="")
    machine.save("pools", about, rows=rows)


def table(rows: list[dict[str, Any]]) -> str:
    head = ["µs a task", "of", "standard", "shmtree", "ratio"]
    cells = [
        [row["kind"], row["size"], f"{row['standard']:.0f}", f"{row['shmtree']:.0f}", f"{row['ratio']:.2f}"]
        for row in rows
    ]
    return markdown.table(head, cells, labels=2)


if __name__ == "__main__":
    main()
