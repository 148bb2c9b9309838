"""Compares requests and replies of a `Service` with the alternatives of the standard library.

    python -m bench.requests [--requests 5000] [--rounds 5]

One other process answers each request: a trivial function of a small dict, or of an array of 64 KiB. In the mode "one
at a time", a thread waits for each answer before it asks again. In the mode "many", it sends all requests before it
reads the first answer. The competitors are `concurrent.futures.ProcessPoolExecutor(1).submit`, and a pair of
`multiprocessing.Queue`s and a `multiprocessing.Pipe` used by hand, which answer in order, to one thread. Each round
measures all of them, in turns. Writes a table to stdout and the figures to bench/results/requests.json.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import shmtree
from bench import machine, markdown, processes

SMALL = {"step": 1, "reward": 1.0}
ARRAY = {"step": 1, "obs": np.zeros(1 << 16, np.uint8)}
OBJECTS = {"a dict": SMALL, "64 KiB": ARRAY}

#: Sends a number of requests with an object, one at a time or all at once, and returns when all answers have arrived.
Ask = Callable[[Any, int, bool], None]


def answer(asked: Any) -> Any:
    return asked["step"]


def serve(name: str) -> None:
    for request in shmtree.Service[Any](name):
        request.reply(answer(request.value))


def serve_queues(requests: Any, replies: Any) -> None:
    while True:
        replies.put(answer(requests.get()))


def serve_pipe(connection: Any) -> None:
    while True:
        connection.send(answer(connection.recv()))


@contextlib.contextmanager
def by_service() -> Iterator[Ask]:
    name = f"bench-requests-{os.getpid()}"
    with processes.child(serve, name), shmtree.Client(name, timeout=60) as client:

        def ask(asked: Any, count: int, at_once: bool) -> None:
            if at_once:
                for future in [client.submit(asked) for _ in range(count)]:
                    future.result()
            else:
                for _ in range(count):
                    client.call(asked)

        yield ask


@contextlib.contextmanager
def by_executor() -> Iterator[Ask]:
    with ProcessPoolExecutor(1, mp.get_context("fork")) as executor:

        def ask(asked: Any, count: int, at_once: bool) -> None:
            if at_once:
                for future in [executor.submit(answer, asked) for _ in range(count)]:
                    future.result()
            else:
                for _ in range(count):
                    executor.submit(answer, asked).result()

        yield ask


@contextlib.contextmanager
def by_queues() -> Iterator[Ask]:
    requests: Any = mp.Queue()
    replies: Any = mp.Queue()
    with processes.child(serve_queues, requests, replies):

        def ask(asked: Any, count: int, at_once: bool) -> None:
            for _ in range(count):
                requests.put(asked)
                if not at_once:
                    replies.get()
            for _ in range(count if at_once else 0):
                replies.get()

        yield ask


@contextlib.contextmanager
def by_pipe() -> Iterator[Ask]:
    """Supports one request at a time only: with many, both sides would block forever on full pipes."""
    here, there = mp.Pipe()
    with processes.child(serve_pipe, there):

        def ask(asked: Any, count: int, at_once: bool) -> None:
            for _ in range(count):
                here.send(asked)
                here.recv()

        yield ask


COMPETITORS = {"Service": by_service, "ProcessPoolExecutor": by_executor, "two Queues": by_queues, "Pipe": by_pipe}


def measure(rounds: int, count: int) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        asks = {name: stack.enter_context(made()) for name, made in COMPETITORS.items()}
        rows = []
        for at_once in (False, True):
            for name, asked in OBJECTS.items():
                row: dict[str, Any] = {"what": f"{name}, {'many at once' if at_once else 'one at a time'}"}
                found: dict[str, list[float]] = {each: [] for each in asks if not (at_once and each == "Pipe")}
                for _ in range(rounds):
                    for each, figures in found.items():
                        began = time.perf_counter()
                        asks[each](asked, count, at_once)
                        figures.append(count / (time.perf_counter() - began))
                rows.append({**row, **{each: statistics.median(figures) for each, figures in found.items()}})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cells = [[row["what"], *(f"{row[each]:,.0f}" if each in row else "" for each in COMPETITORS)] for row in rows]
    return markdown.table(["requests/s", *COMPETITORS], cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.requests", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=5000, help="requests per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.requests)
    about = machine.describe({})
    print(machine.line(about))
    print(table(rows), end="")
    machine.save("requests", about, rows=rows)


if __name__ == "__main__":
    main()
