"""cpprb: one process, or several with its multi-process buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpprb
import numpy as np

from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import Rows


class Peer(Base):
    requires = "cpprb"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.length:
            raise Unsupported("no sequences")
        if wanted.threads > 1:
            raise Unsupported("one thread only")
        spec = {name: {"shape": shape or 1, "dtype": kind} for name, (shape, kind) in wanted.columns.items()}
        options: dict[str, Any] = {}
        self.stack = wanted.stack
        if wanted.stack:
            spec["obs"]["shape"] = (*wanted.columns["obs"][0], wanted.stack)
            options["stack_compress"] = "obs"
        kind = ("MP" if wanted.shared else "") + ("Prioritized" if wanted.prioritized else "") + "ReplayBuffer"
        self.buffer = getattr(cpprb, kind)(wanted.capacity, spec, **options)

    def own_rows(self, rows: Rows) -> Any:
        if not self.stack:
            return rows
        frames = rows["obs"]
        padded = np.concatenate([frames[:1]] * (self.stack - 1) + [frames])
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.stack, axis=0)
        return {**rows, "obs": windows}

    def add(self, row: Any) -> None:
        self.buffer.add(**row)

    def extend(self, rows: Any, stream: int = 0) -> None:
        self.buffer.add(**rows)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)

    def sample_prioritized(self, count: int) -> Any:
        return self.buffer.sample(count, beta=0.4)["indexes"]

    def update(self, drawn: Any, priorities: Any) -> None:
        self.buffer.update_priorities(drawn, priorities)

    def writer(self) -> Any:
        return self

    def save(self, path: Path) -> None:
        self.buffer.save_transitions(str(path))

    def load(self, path: Path) -> None:
        self.buffer.load_transitions(f"{path}.npz")
