"""Adds rows to compare with: copies into shared memory, waking another process, and pickle alone.

A channel may exceed the rows of copies: it may copy with other stores, and rates depend on the load of the machine.
`limits.cpp` measures the first two. It is compiled on first use; without a compiler, its rows report that.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shmtree
from bench.latencies import Latency
from bench.measured import Measured
from bench.scenarios import spread
from bench.workloads import Workload, equal

SOURCE = Path(__file__).with_name("limits.cpp")
COPY_TOUCHED = "memcpy, touched memory"
COPY_FRESH = "memcpy, fresh memory"
FUTEX = "futex ping-pong"
SPIN = "spinning ping-pong"


class Bound(Measured):
    """A row that is measured like a competitor, but without a channel: each run is one call."""

    def __init__(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        super().__init__(name)
        self.measure = measure

    def run(self) -> None:
        if self.problem:
            return
        try:
            self.runs.append(self.measure())
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]


def bounds(workload: Workload, seconds: float) -> list[Bound]:
    """Returns the bounds to measure next to the competitors of this workload."""
    if workload.kind == "codec":
        return [Bound(name, _codec(workload, *codec, seconds)) for name, codec in CODECS.items()]
    if workload.kind == "latency":
        count = max(100, int(seconds * 4 / Latency.gap / 3))
        return [Bound(FUTEX, lambda: _latency("futex", Latency.gap, count))]
    if workload.kind == "pingpong":
        return [
            Bound(FUTEX, lambda: _latency("futex", 0, int(20_000 * seconds))),
            Bound(SPIN, lambda: _latency("spin", 0, int(100_000 * seconds))),
        ]
    if workload.kind != "stream" or workload.nbytes < 50_000 or workload.nbytes > 2_000_000_000:
        return []
    size = str(workload.nbytes)
    return [
        Bound(COPY_TOUCHED, lambda: _program("copy", "touched", size, str(seconds / 2))),
        Bound(COPY_FRESH, lambda: _program("copy", "fresh", size, str(seconds / 2))),
    ]


def _latency(how: str, gap: float, count: int) -> dict[str, Any]:
    samples = _program("latency", how, str(gap), str(count))["samples"]
    return {"one_way_us": spread(samples), "samples": samples[:: max(1, len(samples) // 1000)]}


def _program(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([_compiled(), *arguments], capture_output=True, text=True, timeout=30, check=True)
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def _compiled() -> str:
    source = SOURCE.read_bytes()
    folder = SOURCE.parents[1] / "build" / "bench"
    program = folder / f"limits-{hashlib.sha256(source).hexdigest()[:16]}"
    if not program.exists():
        compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
        if compiler is None:
            raise RuntimeError("no C++ compiler found; install g++ or clang++")
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-std=c++20", "-O2", "-o", unfinished, SOURCE], check=True, capture_output=True)
        unfinished.rename(program)
    return str(program)


# ---------------------------------------------------------------- encoding alone


def _with_buffers(obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(obj, protocol=5, buffer_callback=buffers.append), buffers


CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "shmtree": (shmtree.pack, shmtree.unpack),
    "pickle 5": (lambda obj: pickle.dumps(obj, protocol=5), pickle.loads),
    "pickle 5, buffers out of band": (_with_buffers, lambda parts: pickle.loads(parts[0], buffers=parts[1])),
}


def _codec(
    workload: Workload, encode: Callable[[Any], Any], decode: Callable[[Any], Any], seconds: float
) -> Callable[[], dict[str, Any]]:
    message = workload.make(0)
    encoded = encode(message)

    def measure() -> dict[str, Any]:
        if not equal(decode(encoded), message):
            raise RuntimeError("the decoded value differs from the encoded one")
        return {
            "encode_us": _us_per_call(encode, message, seconds / 2),
            "decode_us": _us_per_call(decode, encoded, seconds / 2),
        }

    return measure


def _us_per_call(function: Callable[[Any], Any], argument: Any, seconds: float) -> float:
    count = 64
    while True:
        started = time.perf_counter()
        for _ in range(count):
            function(argument)
        passed = time.perf_counter() - started
        if passed >= seconds / 2:
            return passed / count * 1e6
        count = max(2 * count, int(count * seconds / max(passed, 1e-9)))
