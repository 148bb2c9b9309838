"""Columns of a buffer as arrays that are indexed by place, like those of another library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._ring import Array, Ring


class RingArray:
    """One column, which NumPy and indexing treat like an array of shape (*front, *shape). Each read copies.

    Args:
        ring: the buffer's rows by place.
        path: keys of the column in a row.
        front: dimensions that number the places, in C order.
        shape, dtype: shape and dtype of the value of one row.
        fill: the value at places without a row.
    """

    def __init__(
        self, ring: Ring, path: tuple[str, ...], front: tuple[int, ...], shape: tuple[int, ...], dtype: Any, fill: float
    ) -> None:
        self._ring, self._path, self._front, self._fill = ring, path, front, fill
        self.shape = (*front, *shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self.size * self.dtype.itemsize)

    def __len__(self) -> int:
        """Length of the first dimension."""
        return self.shape[0]

    def _read(self, places: Array) -> Array:
        part = self._ring.read(places, self._fill)
        for key in self._path:
            part = part[key]
        array: Array = part.reshape(*places.shape, *self.shape[len(self._front) :])
        return array

    def __getitem__(self, key: Any) -> Any:
        places = np.arange(math.prod(self._front)).reshape(self._front)
        keys = key if isinstance(key, tuple) else (key,)
        if any(each is Ellipsis or each is None for each in keys):
            return self._read(places)[key]
        found = np.asarray(places[keys[: len(self._front)]])
        array = self._read(found)
        rest = keys[len(self._front) :]
        return array[(slice(None),) * found.ndim + rest] if rest else array[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("copy=False is impossible, because the rows are stored in another order; pass copy=None")
        array: Array = self[...].astype(dtype or self.dtype, copy=False)
        return array

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("rows of a shared buffer cannot be changed; use add() for new rows")

    def __repr__(self) -> str:
        return f"<RingArray of {self.dtype}, shape {self.shape}>"
