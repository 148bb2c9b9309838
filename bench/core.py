"""The core figures: encoding against pickle, and messages between two processes against multiprocessing.Queue.

Every figure is a median of several rounds; in each round the competitors take turns, so that a slow moment of the
machine meets all of them. Differences under 2x below 1 MB are noise. `./dev bench` runs this; results also go to
bench/results as JSON, with the machine that they were measured on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import pickle
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import workloads

import shmtree

OURS = "shmtree"

# ---------------------------------------------------------------- encode and decode


def with_buffers(obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(obj, protocol=5, buffer_callback=buffers.append), buffers


CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    OURS: (shmtree.pack, shmtree.unpack),
    "pickle 5": (lambda obj: pickle.dumps(obj, protocol=5), pickle.loads),
    "pickle 5, buffers out of band": (with_buffers, lambda parts: pickle.loads(parts[0], buffers=parts[1])),
}


def seconds_per_call(function: Callable[[Any], Any], argument: Any, target: float = 0.1) -> float:
    count = 64
    while True:
        started = time.perf_counter()
        for _ in range(count):
            function(argument)
        passed = time.perf_counter() - started
        if passed >= target / 2:
            return passed / count
        count = max(2 * count, int(count * target / max(passed, 1e-9)))


def measure_codecs(make: Callable[[], Any], rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds to encode and to decode, by codec."""
    message = make()
    encoded = {name: encode(message) for name, (encode, _) in CODECS.items()}
    for name, (_, decode) in CODECS.items():
        assert workloads.equal(decode(encoded[name]), message), f"{name} gives something else back"
    times: dict[str, dict[str, list[float]]] = {name: {"encode": [], "decode": []} for name in CODECS}
    for _ in range(rounds):
        for name, (encode, decode) in CODECS.items():
            times[name]["encode"].append(seconds_per_call(encode, message) * 1e6)
            times[name]["decode"].append(seconds_per_call(decode, encoded[name]) * 1e6)
    return {name: {what: statistics.median(values) for what, values in by.items()} for name, by in times.items()}


# ---------------------------------------------------------------- between two processes


def make_channel(transport: str, capacity: int, context: Any) -> tuple[Any, Any]:
    if transport == OURS:
        return shmtree.create_pair(capacity=capacity)
    both = context.Queue(capacity)
    return both, both


def produce(workload: str, sender: Any, orders: Any, done: Any) -> None:
    """Put as many messages as each order says, until it says 0."""
    message = getattr(workloads, workload)()
    while count := orders.recv():
        for _ in range(count):
            sender.put(message)
    done.recv()  # the receiver has everything; only now may the queue's feeder go


def messages_per_second(workload: str, transport: str, capacity: int, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    sender, receiver = make_channel(transport, capacity, context)
    here, orders = context.Pipe()
    finish, done = context.Pipe()
    process = context.Process(target=produce, args=(workload, sender, orders, done), daemon=True)
    process.start()
    try:
        here.send(1)
        assert workloads.equal(receiver.get(timeout=60), getattr(workloads, workload)())
        count, passed = 32, 0.0
        while True:
            here.send(count)
            receiver.get(timeout=60)  # the clock starts with the first that arrives
            started = time.perf_counter()
            for _ in range(count - 1):
                receiver.get(timeout=60)
            passed = time.perf_counter() - started
            if passed >= seconds / 2:
                return (count - 1) / passed
            count = max(2 * count, int(count * seconds / max(passed, 1e-9)))
            count = min(count, 2_000_000)
    finally:
        here.send(0)
        finish.send(None)
        process.join(30)


def measure_transports(workload: str, capacity: int, rounds: int, seconds: float) -> dict[str, float]:
    rates: dict[str, list[float]] = {OURS: [], "multiprocessing.Queue": []}
    for _ in range(rounds):
        for transport, values in rates.items():
            values.append(messages_per_second(workload, transport, capacity, seconds))
    return {transport: statistics.median(values) for transport, values in rates.items()}


# ---------------------------------------------------------------- report


def machine() -> dict[str, Any]:
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": model[0] if model else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "shmtree": importlib.metadata.version("shmtree"),
        "load_before": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def print_rows(title: str, unit: str, rows: dict[str, float], larger_is_better: bool) -> None:
    print(f"\n{title}")
    for name, value in rows.items():
        ratio = value / rows[OURS] if not larger_is_better else rows[OURS] / value
        note = "" if name == OURS else f"   {OURS} is {ratio:.1f}x as fast"
        print(f"  {name:30} {value:12,.1f} {unit}{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each run between processes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "rounds": options.rounds}
    print(", ".join(f"{key} {value}" for key, value in results["machine"].items()))

    for workload in ("nested_sample", "twenty_small_arrays"):
        measured = measure_codecs(getattr(workloads, workload), options.rounds)
        results[workload] = {"unit": "us", **measured}
        for what in ("encode", "decode"):
            print_rows(f"{workload}: {what}", "us", {n: m[what] for n, m in measured.items()}, larger_is_better=False)
    for workload, capacity in (("array_1mib", 8), ("five_scalars", 1000)):
        rates = measure_transports(workload, capacity, options.rounds, options.seconds)
        results[workload] = {"unit": "messages/s", "capacity": capacity, **rates}
        print_rows(f"{workload}: put + get, capacity {capacity}", "messages/s", rates, larger_is_better=True)

    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"core-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}", file=sys.stderr)


if __name__ == "__main__":
    main()
