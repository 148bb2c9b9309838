"""No buffer at all: copies the bytes of rows over other rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.replay import rows as made
from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.rows import Rows


class Peer(Base):
    requires = "numpy"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.shared or wanted.prioritized:
            raise Unsupported("no buffer")
        self.bytes = made.row_bytes(wanted.columns)
        self.capacity = wanted.capacity
        self.ring = np.zeros(wanted.capacity * self.bytes, np.uint8)
        self.at = 0

    def own_row(self, row: Rows) -> Any:
        return np.zeros(self.bytes, np.uint8)

    def own_rows(self, rows: Rows) -> Any:
        return np.zeros(self.bytes * len(rows["done"]), np.uint8)

    def add(self, row: Any) -> None:
        self.extend(row)

    def extend(self, rows: Any, stream: int = 0) -> None:
        if self.at + len(rows) > len(self.ring):
            self.at = 0
        self.ring[self.at : self.at + len(rows)] = rows
        self.at += len(rows)
