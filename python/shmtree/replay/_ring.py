"""Numbers the rows of a buffer by place, like libraries that keep rows in arrays."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .. import _core
from .._ipc.shared_array import SharedArray
from ..errors import ChannelClosed
from ._batch import Batch
from ._buffer import ReplayBuffer

Array = np.ndarray[Any, Any]

_CLEARED, _MARK, _CLEARS = 0, 1, 2  # parts of the shared state
# Number of rows that a read steps back from a missing row, which another process is writing, or died while writing.
_MAX_STEPS_BACK = 64


class Ring:
    """Numbers the rows of a buffer that has chunks of one row: row n since the last `clear` is at place n % capacity.

    The count of rows at the last `clear` is in shared memory, so that all processes agree on the places.

    Args:
        shared: the buffer.
        added: number of rows that were added since the last clear, including rows that were overwritten since.

    Attributes:
        capacity: the number of places.
    """

    def __init__(self, shared: ReplayBuffer, added: int = 0) -> None:
        self.shared = shared
        self.capacity = shared.capacity
        self._state = SharedArray._make(shared._replay.arena, (3,), np.int64, None)
        self._state.array[_CLEARED] = self._tickets() - added

    def _tickets(self) -> int:
        return _core.replay_tickets(self.shared._replay)

    @property
    def added(self) -> int:
        """Number of rows that were added since the last clear."""
        return self._tickets() - int(self._state.array[_CLEARED])

    @property
    def next(self) -> int:
        """Place of the next row."""
        return self.added % self.capacity

    def __len__(self) -> int:
        """Number of places that have a row."""
        return min(self.added, self.capacity)

    def state(self, items: str, per_place: int = 1) -> str:
        """Returns the number of rows as text, for a repr: of steps of `per_place` rows each, if that is not 1."""
        with contextlib.suppress(ChannelClosed):  # another thread may close it meanwhile
            if not self.shared.closed:
                return f"{len(self) // per_place} of {self.capacity // per_place} {items}"
        return "closed"

    def clear(self) -> None:
        """Drops all rows. The next row is at place 0."""
        shared: Any = self.shared
        shared.clear()
        self._state.array[_CLEARED] = self._tickets()
        self._state.array[_CLEARS] += 1

    @property
    def revision(self) -> int:
        """A number that grows when rows are added or cleared."""
        return self._tickets() + int(self._state.array[_CLEARS])

    def begin_at(self, place: int) -> None:
        """Sets the place of the next row. Call it only while the buffer is empty."""
        self._state.array[_CLEARED] = self._tickets() - place

    # --- Places and indices

    def place_of(self, index: Any) -> Any:
        """Returns the places of rows with these indices."""
        return (np.asarray(index) - 1 - int(self._state.array[_CLEARED])) % self.capacity

    def index_at(self, places: Array) -> Array:
        """Returns the indices of the rows at these places, 0 for a place without a row."""
        cleared = int(self._state.array[_CLEARED])
        newest = self._tickets() - cleared - 1
        numbers = newest - (newest - places) % self.capacity
        index: Array = np.where(numbers < 0, 0, numbers + cleared + 1)
        return index

    def sample(self, n: int, beta: float | None, sampler: str | None = None) -> tuple[Array, Batch]:
        """Samples whole rows, and returns their places and the batch. Raises queue.Empty if there are none."""
        self.shared._replay.drop_overwritten()
        batch = self.shared.sample(n, sampler=sampler, beta=beta, weights="buffer", timeout=0)
        return self.place_of(batch.index), batch

    def update_priorities(self, places: Array, values: Array, before_mark: bool = False) -> Array:
        """Sets priorities, with `before_mark` only of rows that the buffer had at the last mark.

        Returns a mask of the places that were to get a priority, but have no row.
        """
        index = self.index_at(places)
        chosen = self.is_before_mark(index) if before_mark else np.ones(len(index), bool)
        there = chosen & (index > 0)
        if there.any():
            self.shared.update_priorities(index[there], values[there])
        missing: Array = chosen & ~there
        return missing

    def read(self, places: Any, fill: float) -> Any:
        """Copies the rows at these places. Returns `fill` for a place without a row.

        If another process has begun a row and not finished it, the previous row takes its place.
        """
        places = np.ascontiguousarray(places, np.int64).ravel()
        index = self.index_at(places)
        rows, there = self._rows_at(index)
        missing = np.flatnonzero(~there & (index > 0))
        for step in range(_MAX_STEPS_BACK):
            if not len(missing):
                break
            found, is_there = self._rows_at(self.index_at((places[missing] - step) % self.capacity))
            _put(rows, missing[is_there], found, is_there)
            there[missing[is_there]] = True
            missing = missing[~is_there]
        if not there.all():
            _put(rows, ~there, fill)
        return rows

    def _rows_at(self, index: Array) -> tuple[Any, Array]:
        return self.shared._replay.rows_at(np.ascontiguousarray(index, np.uint64))

    # --- A mark, to detect updates of rows that were overwritten since they were sampled

    def mark(self, added: int) -> None:
        """Records that the buffer had the first `added` rows when a batch was sampled."""
        self._state.array[_MARK] = int(self._state.array[_CLEARED]) + added

    def is_before_mark(self, index: Array) -> Array:
        """True for rows that the buffer had at the last mark."""
        before: Array = (index > 0) & (index <= int(self._state.array[_MARK]))
        return before


def places_of(index: Any, size: int) -> Array:
    """Returns the places that an index selects: a slice, ints (negative ones count from the end), or a mask.

    Raises IndexError, with the numbers, for a place that is not below `size`.
    """
    places: Array
    given = index if isinstance(index, slice) else np.asarray(list(index) if isinstance(index, range) else index)
    if isinstance(given, slice) or given.dtype == bool:
        places = np.arange(size)[given]
        return places
    given = given.astype(np.int64)
    if len(out := given[(given < -size) | (given >= size)]):
        raise IndexError(f"index {out[0]} is out of bounds for axis 0 with size {size}")
    places = given % size
    return places


def _put(out: Any, to: Array, rows: Any, which: Any = ...) -> None:
    """Sets the rows `to` of nested arrays to the rows `which` of others, or to a number."""
    if not isinstance(out, dict):
        out[to] = rows[which] if isinstance(rows, np.ndarray) else rows
        return
    for key, part in out.items():
        _put(part, to, rows[key] if isinstance(rows, dict) else rows, which)
