"""Makes the rows of the workloads."""

from __future__ import annotations

from typing import Any

import numpy as np

Columns = dict[str, tuple[tuple[int, ...], Any]]
Rows = dict[str, Any]  # arrays with n rows

SMALL: Columns = {
    "obs": ((4,), np.float32),
    "next_obs": ((4,), np.float32),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "done": ((), np.bool_),
}
PIXEL: Columns = {**SMALL, "obs": ((4, 84, 84), np.uint8), "next_obs": ((4, 84, 84), np.uint8)}
FRAME: Columns = {
    "obs": ((84, 84), np.uint8),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "done": ((), np.bool_),
}
VECTOR: Columns = {"obs": ((45,), np.float32), "done": ((), np.bool_)}

EPISODE = 500  # rows


def row_bytes(columns: Columns) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize for shape, kind in columns.values())


def made(columns: Columns, count: int, first: int = 0) -> Rows:
    """Returns rows of one stream from number `first` on. Each column holds the number; episodes have EPISODE rows."""
    numbers = np.arange(first, first + count)
    rows: Rows = {}
    for name, (shape, kind) in columns.items():
        column = np.empty((count, *shape), kind)
        column[:] = numbers.reshape((count, *[1] * len(shape))).astype(kind)
        rows[name] = column
    rows["done"] = numbers % EPISODE == EPISODE - 1
    return rows


def part(rows: Rows, begin: int, end: int) -> Rows:
    return {name: column[begin:end] for name, column in rows.items()}


def one(rows: Rows, at: int) -> Rows:
    """Returns a row as an environment returns it: arrays, and Python's own numbers."""
    picked = {name: column[at] for name, column in rows.items()}
    return {name: value if value.ndim else value.item() for name, value in picked.items()}
