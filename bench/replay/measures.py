"""Runs each kind of workload for one peer, in a new process.

A measure fills the buffer once, then runs several times. A run returns plain numbers: `rate`, in the workload's unit,
and optional further figures.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from bench.replay import rows
from bench.replay.peers import Base, Wanted
from bench.replay.workloads import Workload

Figures = dict[str, float]

_FILLED = 4096  # rows per call while a buffer is filled
_FLUSHED = 64 << 20  # bytes to copy in order to flush the caches


class Measure(ABC):
    def __init__(self, peer: type[Base], workload: Workload, seconds: float) -> None:
        self.workload, self.seconds = workload, seconds
        self.peer = peer(self.wanted())
        self.flushed = np.zeros(_FLUSHED if workload.is_cold else 1, np.uint8)

    def wanted(self) -> Wanted:
        workload = self.workload
        return Wanted(
            workload.capacity,
            workload.columns,
            prioritized=workload.kind in ("prioritized", "writers"),
            shared=workload.kind == "writers",
            streams=workload.streams,
            stack=workload.stack,
            length=workload.length,
            threads=workload.threads,
        )

    def prepare(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Fills the buffer to its capacity. Each stream has its own rows."""
        streams = self.workload.streams
        each = min(_FILLED, max(1, 32_000_000 // rows.row_bytes(self.workload.columns)))
        count = self.workload.capacity // streams
        for first in range(0, count, each):
            made = rows.made(self.workload.columns, min(each, count - first), first)
            self.peer.extend_streams([made] * streams)

    @abstractmethod
    def call(self) -> None:
        """Makes one measured call."""

    def between(self) -> None:  # noqa: B027
        """Prepares each call; not measured."""

    def run(self) -> Figures:
        """Repeats the call for the requested time, and times each one separately."""
        times: list[int] = []
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end or len(times) < 3:
            self.between()
            if self.workload.is_cold:
                self.flushed += 1
            begin = time.perf_counter_ns()
            self.call()
            times.append(time.perf_counter_ns() - begin)
        ordered = sorted(times)
        mean = sum(times) / len(times) / 1e9
        return {
            "rate": 1 / mean,
            "p50_us": ordered[len(times) // 2] / 1e3,
            "p99_us": ordered[len(times) * 99 // 100] / 1e3,
        }


class Add(Measure):
    """Adds rows without reading the clock between them."""

    def __init__(self, peer: type[Base], workload: Workload, seconds: float) -> None:
        super().__init__(peer, workload, seconds)
        self.count = 1

    def prepare(self) -> None:
        batch = self.workload.batch
        made = rows.made(self.workload.columns, 64 * batch)
        if batch == 1:
            self.rows = [self.peer.own_row(rows.one(made, at)) for at in range(64)]
        else:
            self.rows = [self.peer.own_rows(rows.part(made, at * batch, (at + 1) * batch)) for at in range(64)]
        self.fill_once()
        while self.timed() < self.seconds / 2:
            self.count *= 2

    def fill_once(self) -> None:
        """Fills the buffer with the measured calls, so that the first run finds its pages allocated."""
        for at in range(self.workload.capacity // self.workload.batch + 1):
            self.add(self.rows[at % 64])

    def add(self, made: Any) -> None:
        if self.workload.batch == 1:
            self.peer.add(made)
        else:
            self.peer.extend(made)

    def call(self) -> None:
        raise NotImplementedError

    def timed(self) -> float:
        add = self.peer.add if self.workload.batch == 1 else self.peer.extend
        begin = time.perf_counter()
        for at in range(self.count):
            add(self.rows[at & 63])
        return time.perf_counter() - begin

    def run(self) -> Figures:
        return {"rate": self.count * self.workload.batch / self.timed()}


class Sample(Measure):
    def call(self) -> None:
        self.peer.sample(self.workload.batch)


class Prioritized(Measure):
    def prepare(self) -> None:
        super().prepare()
        self.random = np.random.default_rng(2)
        self.more = self.peer.own_rows(rows.made(self.workload.columns, max(1, self.workload.added)))
        for _ in range(self.workload.capacity // 4096):  # so that priorities differ
            self.between()
            self.call()

    def between(self) -> None:
        self.priorities = self.random.random(self.workload.batch, np.float32)

    def call(self) -> None:
        drawn = self.peer.sample_prioritized(self.workload.batch)
        self.peer.update(drawn, self.priorities)
        if self.workload.added:
            self.peer.extend(self.more)


class Sequences(Measure):
    def prepare(self) -> None:
        super().prepare()
        self.more = [rows.made(self.workload.columns, 1)] * self.workload.streams

    def between(self) -> None:
        self.peer.extend_streams(self.more)

    def call(self) -> None:
        self.peer.sequences(self.workload.batch, self.workload.length)
