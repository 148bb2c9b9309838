"""Base classes of the four buffers with cpprb's interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from multiprocessing.context import ProcessError
from queue import Empty
from typing import Any

import numpy as np

from ._buffer import ReplayBuffer
from ._options import RING, Sampling
from ._ring import Array, Ring, places_of
from ._samplers import Prioritized, Sampler, Uniform

_FILL = 1  # value at places without a row, as in cpprb's arrays


def _shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    shape = spec.get("shape", 1)
    return tuple(shape) if isinstance(shape, Iterable) else (int(shape),)


def _dtype(given: Any) -> np.dtype[Any]:
    """Returns the canonical dtype. NumPy has two dtypes of some layouts, such as int64 and longlong."""
    dtype: np.dtype[Any] = np.dtype(given)
    return dtype if dtype.hasobject or dtype.names else np.dtype(dtype.str)


def _singles(values: Any) -> Array:
    return np.ravel(np.asarray(values, np.single))


class PlacedRows:
    """Rows that are numbered by place, as in cpprb."""

    def __init__(self, size: Any, env: Mapping[str, Mapping[str, Any]], default_dtype: Any, ctx: Any = None) -> None:
        _start(ctx)
        dtype = default_dtype or np.single
        self._columns = {name: (_shape(spec), _dtype(spec.get("dtype") or dtype)) for name, spec in env.items()}
        columns = self._columns or {"": ((), np.dtype(np.uint8))}
        self._counted = next(reversed(self._columns), "")  # the number of its values is the number of steps
        self.shared = ReplayBuffer(int(size), columns=columns, sampling=Sampling(self._sampler()), **RING)
        self._ring = Ring(self.shared)

    def _sampler(self) -> Sampler:
        return Uniform()

    # --- Adding

    def _steps_of(self, name: str, given: Mapping[str, Any]) -> Array:
        return np.reshape(np.asarray(given[name]), (-1, *self._columns[name][0]))

    def _rows(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """Returns columns with as many steps as the counted one. Raises KeyError for a missing column."""
        count = len(self._steps_of(self._counted, given))
        rows = {}
        for name, (shape, dtype) in self._columns.items():
            column = self._steps_of(name, given)
            if len(column) not in (1, count):
                raise ValueError(f"{name} has {len(column)} steps, but other columns have {count}")
            rows[name] = np.broadcast_to(column, (count, *shape)).astype(dtype)
        return rows

    def add(self, **kwargs: Any) -> int | None:
        return self._add(self._rows(kwargs), None)

    def _add(self, rows: dict[str, Array], priorities: Array | None) -> int:
        """Returns the place of the first row."""
        index = self.shared.extend(rows, priority=priorities)
        return int(self._ring.place_of(index[0])) if len(index) else self._ring.next

    # --- Sampling

    def _encode_sample(self, idx: Any) -> dict[str, Array]:
        places = places_of(np.array(idx, ndmin=1), self._ring.capacity)
        data: dict[str, Array] = self._ring.read(places, _FILL)
        return {name: data[name].reshape(*places.shape, *shape) for name, (shape, _) in self._columns.items()}

    def sample(self, batch_size: int) -> dict[str, Array]:
        return self._encode_sample(np.random.randint(0, self.get_stored_size(), batch_size))

    def get_all_transitions(self, shuffle: bool = False) -> dict[str, Array]:
        """Returns all rows, in the order of their places."""
        places = np.arange(self.get_stored_size())
        if shuffle:
            np.random.shuffle(places)
        return self._encode_sample(places)

    # --- Sizes

    def get_buffer_size(self) -> int:
        return self._ring.capacity

    def get_stored_size(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self._ring.state('rows')}>"

    def get_next_index(self) -> int:
        return self._ring.next

    def clear(self) -> None:
        self._ring.clear()

    def is_Nstep(self) -> bool:
        return False

    def on_episode_end(self) -> None:
        pass


class PlacedPriorities(PlacedRows):
    """Rows that are numbered by place, with priorities."""

    _alpha: float
    _eps: float
    _ignores_late = True  # ignores updates of rows that were added since the last sample()

    def _sampler(self) -> Sampler:
        return Prioritized(alpha=self._alpha, eps=self._eps)

    def add(self, *, priorities: Any = None, **kwargs: Any) -> int | None:
        given = self._checked_priorities(priorities, kwargs)
        return self._add(self._rows(kwargs), given)

    def _checked_priorities(self, priorities: Any, given: Mapping[str, Any]) -> Array | None:
        count = len(self._steps_of(self._counted, given))
        if priorities is None:
            return None
        singles = _singles(priorities)
        if len(singles) != count:
            raise ValueError("`priorities` shape is incompatible")
        return singles

    def sample(self, batch_size: int, beta: float = 0.4) -> dict[str, Array]:
        added = self._ring.added
        if self.get_stored_size() == 0:
            raise ValueError("high <= 0: the buffer is empty")
        if batch_size == 0:
            empty = self._encode_sample(np.empty(0, np.int64))
            return {**empty, "weights": np.empty(0, np.single), "indexes": np.empty(0, np.uint64)}
        try:
            places, batch = self._ring.sample(batch_size, beta)
        except Empty:
            raise ValueError("high <= 0: the buffer has no whole row yet") from None
        self._ring.mark(added)
        return {**batch.data, "weights": batch.weight, "indexes": places.astype(np.uint64)}

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        if indexes is None or priorities is None:
            raise TypeError("`indexes` and `priorities` must not be `None`")
        places, values = np.ravel(np.array(indexes, np.uint64)), _singles(priorities)
        if len(values) < len(places):
            raise ValueError(f"there are {len(places)} indexes, but only {len(values)} priorities")
        if len(out := places[places >= self._ring.capacity]):
            raise IndexError(f"index {out[0]} is out of bounds for a buffer of {self._ring.capacity}")
        values = values[: len(places)]
        missing = self._ring.update_priorities(places.astype(np.int64), values, self._ignores_late)
        if missing.any():  # in cpprb, priorities of places without a row raise the largest one
            self.shared._replay.raise_max_priority(0, float(values[missing].max()))

    def get_max_priority(self) -> float:
        return self.shared.max_priority

    def clear(self) -> None:
        super().clear()
        self.shared._replay.reset_max_priority(0)


def _start(ctx: Any) -> None:
    """Starts a manager that was passed as `ctx`, as cpprb does. Raises ProcessError if it was shut down."""
    state = getattr(ctx, "_state", None)
    value = getattr(state, "value", None)
    if value == 0:
        ctx.start()
    elif value == 2:
        raise ProcessError("`ctx` is a manager that was shut down")
