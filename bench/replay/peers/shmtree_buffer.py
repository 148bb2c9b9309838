"""shmtree's replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.replay.peers import Base, Wanted
from bench.replay.rows import Rows
from shmtree.replay import Episodes, Limits, Prioritized, ReplayBuffer, Sampling, Uniform


class Peer(Base):
    requires = "shmtree"

    def __init__(self, wanted: Wanted) -> None:
        self.threads = wanted.threads
        self.buffer = ReplayBuffer(
            wanted.capacity,
            columns=wanted.columns,
            sampling=Sampling(Prioritized(alpha=0.6, beta=0.4) if wanted.prioritized else Uniform()),
            limits=Limits(streams=4 if wanted.shared else wanted.streams),
            episodes=Episodes(stack={"obs": wanted.stack} if wanted.stack else None),
        )
        self.writers = [self.buffer.writer() for _ in range(wanted.streams)]

    def add(self, row: Rows) -> None:
        self.writers[0].add(row)

    def extend(self, rows: Rows, stream: int = 0) -> None:
        self.writers[stream].extend(rows)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count, threads=self.threads)

    def sample_prioritized(self, count: int) -> Any:
        return self.buffer.sample(count).index

    def update(self, drawn: Any, priorities: Any) -> None:
        self.buffer.update_priorities(drawn, priorities)

    def sequences(self, count: int, length: int) -> Any:
        return self.buffer.sample_sequences(count, length=length)

    def writer(self) -> Any:
        return Writing(self.buffer)

    def save(self, path: Path) -> None:
        self.buffer.save(path)

    def load(self, path: Path) -> None:
        self.buffer = ReplayBuffer.load(path)

    def close(self) -> None:
        self.buffer.close()


class Writing:
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def own_row(self, row: Rows) -> Rows:
        return row

    def add(self, row: Rows) -> None:
        self.buffer.add(row)
