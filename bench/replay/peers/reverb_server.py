"""Reverb: a server, a client, and its TensorFlow dataset. Needs its own interpreter, set with --python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import reverb
import tensorflow

from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import Columns, Rows, one

_TABLE = "rows"
_MAX = 2_000_000  # rows; filling more takes an hour


class Peer(Base):
    requires = "dm-reverb"
    context = "spawn"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.length or wanted.stack:
            raise Unsupported("sequences are fixed when they are written")
        if wanted.capacity > _MAX:
            raise Unsupported(f"filling more than {_MAX} rows takes too long")
        tensorflow.config.set_visible_devices([], "GPU")
        signature = {
            name: tensorflow.TensorSpec((1, *shape), np.dtype(kind)) for name, (shape, kind) in wanted.columns.items()
        }
        table = reverb.Table(
            _TABLE,
            sampler=reverb.selectors.Prioritized(0.6) if wanted.prioritized else reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=wanted.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self.server = reverb.Server([table])
        self.address = f"localhost:{self.server.port}"
        self.own = Writing(self.address, wanted.columns)
        self.batches: dict[int, Any] = {}

    def own_row(self, row: Rows) -> Rows:
        return self.own.own_row(row)

    def add(self, row: Rows) -> None:
        self.own.add(row)

    def extend(self, rows: Rows, stream: int = 0) -> None:
        for at in range(len(rows["done"])):
            self.own.add(self.own_row(one(rows, at)))
        self.own.flush()

    def sample(self, count: int) -> Any:
        if count not in self.batches:
            drawn = reverb.TrajectoryDataset.from_table_signature(
                self.address, _TABLE, max_in_flight_samples_per_worker=2 * count
            )
            self.batches[count] = drawn.batch(count).as_numpy_iterator()
        return next(self.batches[count])

    def sample_prioritized(self, count: int) -> Any:
        return self.sample(count).info.key.reshape(-1)

    def update(self, drawn: Any, priorities: Any) -> None:
        self.own.client.mutate_priorities(_TABLE, dict(zip(drawn.tolist(), priorities.tolist())))

    def writer(self) -> Any:
        return Writing(self.address, self.own.columns)

    def save(self, path: Path) -> None:
        self.own.client.checkpoint()


class Writing:
    """A client that is created on first use."""

    def __init__(self, address: str, columns: Columns) -> None:
        self.address, self.columns = address, columns
        self._client: Any = None
        self.added = 0

    def __reduce__(self) -> Any:
        return Writing, (self.address, self.columns)

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = reverb.Client(self.address)
            self.rows = self._client.trajectory_writer(num_keep_alive_refs=1)
        return self._client

    def own_row(self, row: Rows) -> Rows:
        return {name: np.asarray(value, self.columns[name][1]) for name, value in row.items()}

    def add(self, row: Rows) -> None:
        assert self.client
        self.rows.append(row)
        self.rows.create_item(_TABLE, 1.0, {name: column[-1:] for name, column in self.rows.history.items()})
        self.added += 1
        if self.added % 64 == 0:
            self.flush()

    def flush(self) -> None:
        self.rows.flush(block_until_num_items=64)
