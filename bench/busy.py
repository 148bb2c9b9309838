"""Measures round trips and streams between two processes while other processes compute on the same cores.

    python -m bench.busy [--busy 0 4] [--messages E] [--under usual] [--seconds 1] [--rounds 5] [channels]

`--busy` sets the number of processes that only compute. `--under` sets how the two processes run: as usual, both on one
core, as batch processes, with nice value 10, or with a quota of half a core (root only). Round trips use two channels
of a kind, a duplex Pipe or a Service; streams go one way as fast as possible. The channels are measured in turns, each
time in new processes. Writes a table to stdout and the figures to bench/results/busy.json. Exits with status 1 if a
channel of shmtree is slower than the best of the standard library by more than the spread of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import shmtree
from bench import machine, markdown, processes
from bench.report import short
from bench.workloads import WORKLOADS
from shmtree import multiprocessing as ours

_FORK = multiprocessing.get_context("fork")

#: Names of messages, with the workload that makes them.
MESSAGES = {"E": "E", "1 KB": "bytes-1KB", "C": "C", "D": "D"}
PLACES = 1000


# ---------------------------------------------------------------- channels


class Pair:
    """One channel in one direction, with put and get."""

    def __init__(self, make: Callable[[int], tuple[Any, Any]], places: int) -> None:
        sender, receiver = make(places)
        self.put, self.get = sender.put, receiver.get


class PipePair:
    """A Pipe with the interface of Pair."""

    def __init__(self, make: Callable[..., tuple[Any, Any]], places: int) -> None:
        receiver, sender = make(duplex=False)
        self.put, self.get = sender.send, receiver.recv


def queue(make: Callable[..., Any]) -> Callable[[int], Any]:
    def made(places: int) -> Any:
        both = make(places)
        return Pair(lambda _: (both, both), places)

    return made


#: Channels of one direction. Names with a dot belong to the standard library.
CHANNELS: dict[str, Callable[[int], Any]] = {
    "pair": lambda places: Pair(shmtree.create_pair, places),
    "Queue": queue(shmtree.Queue),
    "Pipe": lambda places: PipePair(ours.Pipe, places),
    "multiprocessing.Queue": queue(multiprocessing.Queue),
    "multiprocessing.SimpleQueue": queue(lambda places: multiprocessing.SimpleQueue()),
    "multiprocessing.Pipe": lambda places: PipePair(multiprocessing.Pipe, places),
}
OURS = ("pair", "Queue", "Pipe", "Service")


# ---------------------------------------------------------------- measurements


def echo(there: Any, back: Any) -> None:
    while True:
        back.put(there.get())


def echo_pipe(connection: Any) -> None:
    while True:
        connection.send(connection.recv())


def serve(name: str) -> None:
    for request in shmtree.Service[Any](name):
        request.reply(request.value)


@contextlib.contextmanager
def asking(kind: str) -> Iterator[Callable[[Any], Any]]:
    """Yields a function that sends an object to another process and returns the answer."""
    if kind == "Service":
        name = f"bench-busy-{os.getpid()}-{time.monotonic_ns()}"
        with processes.child(serve, name), shmtree.Client(name, timeout=60) as client:
            yield client.call
    elif kind.endswith("Pipe"):
        here, there = (ours if kind == "Pipe" else multiprocessing).Pipe()

        def ask(message: Any) -> Any:
            here.send(message)
            return here.recv()

        with processes.child(echo_pipe, there):
            yield ask
    else:
        out, back = CHANNELS[kind](1), CHANNELS[kind](1)

        def ask(message: Any) -> Any:
            out.put(message)
            return back.get()

        with processes.child(echo, out, back):
            yield ask


def round_trips(kind: str, message: Any, seconds: float) -> dict[str, float]:
    """Measures round trips per second, and quantiles in microseconds."""
    with asking(kind) as ask:
        for _ in range(20):
            ask(message)
        times = []
        end = time.perf_counter() + seconds
        began = now = time.perf_counter()
        while now < end:
            ask(message)
            now, before = time.perf_counter(), now
            times.append(now - before)
    times.sort()
    return {
        "per_s": len(times) / (now - began),
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[len(times) * 99 // 100] * 1e6,
        "worst_us": times[-1] * 1e6,
    }


def put_forever(channel: Any, message: Any) -> None:
    while True:
        channel.put(message)


def stream(kind: str, message: Any, seconds: float) -> dict[str, float]:
    channel = CHANNELS[kind](PLACES)
    with processes.child(put_forever, channel, message):
        for _ in range(20):
            channel.get()
        count = 0
        end = time.perf_counter() + seconds
        began = now = time.perf_counter()
        while now < end:
            for _ in range(10):
                channel.get()
            count += 10
            now = time.perf_counter()
    return {"per_s": count / (now - began)}


MEASURES: dict[str, tuple[Callable[[str, Any, float], dict[str, float]], list[str]]] = {
    "round trips": (round_trips, [*CHANNELS, "Service"]),
    "stream": (stream, list(CHANNELS)),
}


# ---------------------------------------------------------------- the machine around them


#: Changes how the calling process and its children are scheduled.
Arrange = Callable[[], None]


@contextlib.contextmanager
def as_usual() -> Iterator[Arrange]:
    yield lambda: None


@contextlib.contextmanager
def on_one_core() -> Iterator[Arrange]:
    yield lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@contextlib.contextmanager
def as_batch() -> Iterator[Arrange]:
    yield lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def nice_10() -> Iterator[Arrange]:
    yield lambda: os.setpriority(os.PRIO_PROCESS, 0, 10)


@contextlib.contextmanager
def with_quota() -> Iterator[Arrange]:
    """Limits processes to half of a core, with either version of control groups."""
    if (root := Path("/sys/fs/cgroup/cpu")).is_dir():
        limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    else:
        root = Path("/sys/fs/cgroup")
        (root / "cgroup.subtree_control").write_text("+cpu")
        limits = {"cpu.max": "50000 100000"}
    folder = root / f"shmtree-bench-{os.getpid()}"
    folder.mkdir()
    try:
        for file, value in limits.items():
            (folder / file).write_text(value)

        def enter() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        yield enter
    finally:
        while (folder / "cgroup.procs").read_text():
            time.sleep(0.01)  # the last process is exiting
        folder.rmdir()


UNDER: dict[str, Callable[[], contextlib.AbstractContextManager[Arrange]]] = {
    "usual": as_usual,
    "one-core": on_one_core,
    "batch": as_batch,
    "nice-10": nice_10,
    "half-a-core": with_quota,
}


def measured(under: str, measure: str, kind: str, message: Any, seconds: float) -> dict[str, float]:
    """Measures in a new process, scheduled as `under` says."""
    here, there = _FORK.Pipe(duplex=False)

    def run(arrange: Arrange) -> None:
        arrange()
        there.send(MEASURES[measure][0](kind, message, seconds))

    with UNDER[under]() as arrange, processes.child(run, arrange):
        there.close()
        found: dict[str, float] = here.recv()
        return found


# ---------------------------------------------------------------- rounds and tables


def measure_case(under: str, count: int, measure: str, name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    message = WORKLOADS[MESSAGES[name]].make(1)
    kinds = [kind for kind in MEASURES[measure][1] if kind in options.channels]
    with processes.busy(count):
        rounds = [
            {kind: measured(under, measure, kind, message, options.seconds) for kind in kinds}
            for _ in range(options.rounds)
        ]
    rows = []
    for kind in kinds:
        found = [each[kind] for each in rounds]
        medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
        rates = [each["per_s"] for each in found]
        case: dict[str, Any] = {"under": under, "busy": count, "measure": measure, "message": name, "kind": kind}
        rows.append({**case, **medians, "least": min(rates), "most": max(rates)})
    compare(rows)
    return rows


def compare(rows: list[dict[str, Any]]) -> None:
    """Adds to each of our rows its ratio to the best rate of the standard library."""
    others = [row for row in rows if row["kind"] not in OURS]
    for row in rows:
        against = [other for other in others if row["kind"] != "Service" or other["kind"].endswith("Pipe")]
        if row["kind"] in OURS and against:
            best = max(against, key=lambda other: float(other["per_s"]))
            row["ratio"] = row["per_s"] / best["per_s"]
            row["is_slower"] = row["most"] < best["least"]
            if "p99_us" in row:
                row["p99_ratio"] = row["p99_us"] / min(float(other["p99_us"]) for other in against)


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "run as": lambda row: str(row["under"]),
    "busy": lambda row: str(row["busy"]),
    "": lambda row: str(row["measure"]),
    "of": lambda row: str(row["message"]),
    "channel": lambda row: str(row["kind"]),
    "per second": lambda row: short(row["per_s"]),
    "from": lambda row: short(row["least"]),
    "to": lambda row: short(row["most"]),
    "p50, µs": lambda row: f"{row['p50_us']:.0f}" if "p50_us" in row else "",
    "p99, µs": lambda row: f"{row['p99_us']:.0f}" if "p99_us" in row else "",
    "worst, ms": lambda row: f"{row['worst_us'] / 1e3:.1f}" if "worst_us" in row else "",
    "times": lambda row: f"{row['ratio']:.2f}" if "ratio" in row else "",
    "p99 times": lambda row: f"{row['p99_ratio']:.2f}" if "p99_ratio" in row else "",
}


def table(rows: list[dict[str, Any]]) -> str:
    cells = [[text(row) for text in COLUMNS.values()] for row in rows]
    return markdown.table(list(COLUMNS), cells, labels=5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.busy", description=__doc__.partition("\n")[0])
    parser.add_argument("channels", nargs="*", default=[*CHANNELS, "Service"], help="names (default: all)")
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 4], help="numbers of processes that compute")
    parser.add_argument("--messages", nargs="+", default=["E"], choices=MESSAGES)
    parser.add_argument("--measures", nargs="+", default=list(MEASURES), choices=MEASURES)
    parser.add_argument("--under", nargs="+", default=["usual"], choices=UNDER)
    parser.add_argument("--seconds", type=float, default=1, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    options = parser.parse_args()
    about = machine.describe({})
    print(machine.line(about))
    rows = []
    for under in options.under:
        for count in options.busy:
            for measure in options.measures:
                for name in options.messages:
                    found = measure_case(under, count, measure, name, options)
                    print(table(found), flush=True)
                    rows += found
    machine.save("busy", about, rows=rows)
    return int(any(row.get("is_slower") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
