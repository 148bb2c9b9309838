"""TorchRL: a storage of tensors and a sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSampler, RandomSampler, ReplayBuffer, SliceSampler

from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import Rows


class Peer(Base):
    requires = "torchrl"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.shared:
            raise Unsupported("no priorities that processes share")
        torch.set_num_threads(wanted.threads)
        sampler: Any = RandomSampler()
        self.streams, self.stack = wanted.streams, wanted.stack
        dimensions = 1
        if wanted.prioritized:
            sampler = PrioritizedSampler(wanted.capacity, alpha=0.6, beta=0.4)
        if length := wanted.stack or wanted.length:
            dimensions = 2 if wanted.streams > 1 else 1
            sampler = SliceSampler(slice_len=length, end_key="done")
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(wanted.capacity, ndim=dimensions), sampler=sampler)

    def own_row(self, row: Rows) -> Any:
        return TensorDict({name: torch.as_tensor(value) for name, value in row.items()})

    def own_rows(self, rows: Rows) -> Any:
        columns = {name: torch.from_numpy(column) for name, column in rows.items()}
        return TensorDict(columns, [len(rows["done"])])

    def add(self, row: Any) -> None:
        self.buffer.add(row)

    def extend(self, rows: Any, stream: int = 0) -> None:
        self.buffer.extend(rows)

    def extend_streams(self, rows: list[Rows]) -> None:
        if self.streams == 1:
            self.extend(self.own_rows(rows[0]))
        else:
            self.extend(torch.stack([self.own_rows(each) for each in rows], 0))

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count * (self.stack or 1))

    def sample_prioritized(self, count: int) -> Any:
        _, about = self.buffer.sample(count, return_info=True)
        return about["index"]

    def update(self, drawn: Any, priorities: Any) -> None:
        self.buffer.update_priority(drawn, priorities)

    def sequences(self, count: int, length: int) -> Any:
        return self.buffer.sample(count * length)

    def save(self, path: Path) -> None:
        self.buffer.dumps(path)

    def load(self, path: Path) -> None:
        self.buffer.loads(path)
