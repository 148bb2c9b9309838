"""Compares requests and replies of a `Service` with the alternatives of the standard library.

    python -m bench.requests [--requests 5000] [--rounds 5] [--cpp build/bench/bench/cpp/bench_requests]

One other process answers each request: a trivial function of a small dict, or of an array of 64 KiB. In the mode "one
at a time", a thread waits for each answer before it asks again. In the mode "many", it sends all requests before it
reads the first answer. The competitors are `concurrent.futures.ProcessPoolExecutor(1).submit`, and a pair of
`multiprocessing.Queue`s and a `multiprocessing.Pipe` used by hand, which answer in order, to one thread. Each round
measures all of them, in turns. With --cpp, a second table has the dict, one at a time, between servers and clients in
C++ and Python. If pyzmq is installed, its REQ and REP sockets with pickles are beside them. Writes tables to stdout,
and the figures to bench/results/requests.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing as mp
import os
import pickle
import statistics
import subprocess
import tempfile
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


@contextlib.contextmanager
def cpp_server(program: str, name: str) -> Iterator[None]:
    with subprocess.Popen([program, "serve", name]) as server:
        try:
            yield
        finally:
            server.kill()


def serve_zmq(address: str) -> None:
    import zmq

    with zmq.Context.instance().socket(zmq.REP) as socket:
        socket.bind(address)
        while True:
            socket.send(pickle.dumps(answer(pickle.loads(socket.recv())), protocol=5))


def ask_python(ask: Callable[[Any], Any], count: int) -> tuple[float, float, float]:
    """Returns requests/s, and the latencies p50 and p99 in µs."""
    took = []
    began = time.perf_counter()
    for _ in range(count):
        asked = time.perf_counter()
        ask(SMALL)
        took.append(time.perf_counter() - asked)
    rate = count / (time.perf_counter() - began)
    return rate, 1e6 * statistics.median(took), 1e6 * statistics.quantiles(took, n=100)[-1]


def ask_cpp(program: str, name: str, count: int) -> tuple[float, float, float]:
    printed = subprocess.run([program, "ask", name, str(count)], capture_output=True, text=True, check=True).stdout
    rate, p50, p99 = map(float, printed.split())
    return rate, p50, p99


def between_languages(program: str, rounds: int, count: int) -> list[dict[str, Any]]:
    """Measures a client and a server of either language, in turns."""
    name = f"bench-languages-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(cpp_server(program, f"{name}-cpp"))
        stack.enter_context(processes.child(serve, f"{name}-py"))
        clients = {each: stack.enter_context(shmtree.Client(f"{name}-{each}", timeout=60)) for each in ("cpp", "py")}
        measures: dict[str, Callable[[], tuple[float, float, float]]] = {
            "C++ to C++": lambda: ask_cpp(program, f"{name}-cpp", count),
            "C++ to Python": lambda: ask_cpp(program, f"{name}-py", count),
            "Python to C++": lambda: ask_python(clients["cpp"].call, count),
            "Python to Python": lambda: ask_python(clients["py"].call, count),
        }
        if importlib.util.find_spec("zmq") is not None:
            measures["pyzmq REQ/REP"] = zmq_measure(stack, count)
        found: dict[str, list[tuple[float, float, float]]] = {each: [] for each in measures}
        for _ in range(rounds):
            for each, measured in found.items():
                measured.append(measures[each]())
    columns = ("requests/s", "p50 µs", "p99 µs")
    return [
        {"what": each, **{column: statistics.median(row[i] for row in rows) for i, column in enumerate(columns)}}
        for each, rows in found.items()
    ]


def zmq_measure(stack: contextlib.ExitStack, count: int) -> Callable[[], tuple[float, float, float]]:
    import zmq

    address = f"ipc://{stack.enter_context(tempfile.TemporaryDirectory(prefix='bench-zmq-'))}/socket"
    stack.enter_context(processes.child(serve_zmq, address))
    socket = stack.enter_context(zmq.Context.instance().socket(zmq.REQ))
    socket.connect(address)

    def ask(asked: Any) -> Any:
        socket.send(pickle.dumps(asked, protocol=5))
        return pickle.loads(socket.recv())

    return lambda: ask_python(ask, count)


def table_of_languages(rows: list[dict[str, Any]]) -> str:
    columns = [column for column in rows[0] if column != "what"]
    cells = [[row["what"], *(f"{row[column]:,.1f}" for column in columns)] for row in rows]
    return markdown.table(["client to server", *columns], cells)


def table(rows: list[dict[str, Any]]) -> str:
    cells = [[row["what"], *(f"{row[each]:,.0f}" if each in row else "" for each in COMPETITORS)] for row in rows]
    return markdown.table(["requests/s", *COMPETITORS], cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.requests", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=5000, help="requests per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    parser.add_argument("--cpp", help="path of the program bench_requests; also measures between C++ and Python")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.requests)
    about = machine.describe({})
    print(machine.line(about))
    print(table(rows), end="")
    languages = between_languages(arguments.cpp, arguments.rounds, arguments.requests) if arguments.cpp else []
    if languages:
        print(table_of_languages(languages), end="")
    machine.save("requests", about, rows=rows, languages=languages)


if __name__ == "__main__":
    main()
