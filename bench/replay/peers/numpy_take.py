"""A hand-made buffer: one array per column, written cyclically and gathered with `take`."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any

import numpy as np

from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import EPISODE, Rows


class Peer(Base):
    requires = "numpy"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.shared:
            raise Unsupported("one process only")
        self.capacity, self.streams, self.stack = wanted.capacity, wanted.streams, wanted.stack
        self.columns = {
            name: np.zeros((wanted.capacity, *shape), kind) for name, (shape, kind) in wanted.columns.items()
        }
        self.at = self.size = 0
        self.out: dict[tuple[str, int], Any] = {}
        self.random = np.random.default_rng(1)
        self.threads = wanted.threads
        self.pool = concurrent.futures.ThreadPoolExecutor(wanted.threads)

    def add(self, row: Rows) -> None:
        for name, column in self.columns.items():
            column[self.at] = row[name]
        self._moved(1)

    def extend(self, rows: Rows, stream: int = 0) -> None:
        count = len(rows["done"])
        first = min(count, self.capacity - self.at)
        for name, column in self.columns.items():
            column[self.at : self.at + first] = rows[name][:first]
            column[: count - first] = rows[name][first:]
        self._moved(count)

    def extend_streams(self, rows: list[Rows]) -> None:
        """Interleaves the streams: consecutive rows of a stream are `streams` apart."""
        self.extend({name: np.stack([each[name] for each in rows], 1).reshape(-1, *rows[0][name].shape[1:])
                     for name in self.columns})  # fmt: skip

    def _moved(self, count: int) -> None:
        self.at = (self.at + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _into(self, name: str, count: int) -> Any:
        if (name, count) not in self.out:
            column = self.columns[name]
            self.out[name, count] = np.zeros((count, *column.shape[1:]), column.dtype)
        return self.out[name, count]

    def sample(self, count: int) -> Any:
        drawn = self.random.integers(self.size, size=count)
        if self.stack:
            return self._stacks(drawn)
        return {name: self._taken(name, drawn) for name in self.columns}

    def _taken(self, name: str, drawn: Any) -> Any:
        column, out = self.columns[name], self._into(name, len(drawn))
        if self.threads == 1 or out.nbytes < 1 << 20:
            return column.take(drawn, axis=0, out=out, mode="clip")
        parts = zip(np.array_split(drawn, self.threads), np.array_split(out, self.threads))
        list(self.pool.map(lambda each: column.take(each[0], axis=0, out=each[1], mode="clip"), parts))
        return out

    def _stacks(self, drawn: Any) -> Any:
        """Stacks frames. Searches for the start of an episode frame by frame, and repeats its first frame before it."""
        indices = np.stack([drawn] * self.stack, 1)
        for back in range(self.stack - 2, -1, -1):
            before = np.maximum(indices[:, back + 1] - 1, 0)
            indices[:, back] = np.where(self.columns["done"][before], indices[:, back + 1], before)
        batch = {name: self._taken(name, drawn) for name in self.columns if name != "obs"}
        frames = self._taken("obs", indices.reshape(-1))
        return {**batch, "obs": frames.reshape(len(drawn), self.stack, *frames.shape[1:])}

    def sequences(self, count: int, length: int) -> Any:
        """Samples sequences. Episodes have a fixed length here, so the end of each one is known without a search."""
        drawn = np.empty(0, np.int64)
        while len(drawn) < count:
            more = self.random.integers(self.size // self.streams, size=count)
            drawn = np.concatenate([drawn, more[more % EPISODE <= EPISODE - length]])
        starts = drawn[:count] * self.streams + self.random.integers(self.streams, size=count)
        indices = starts[:, None] + np.arange(length) * self.streams
        return {name: self._taken(name, indices.reshape(-1)) for name in self.columns}

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        for name, column in self.columns.items():
            np.save(path / name, column)

    def load(self, path: Path) -> None:
        for name in self.columns:
            self.columns[name] = np.load(path / f"{name}.npy")
