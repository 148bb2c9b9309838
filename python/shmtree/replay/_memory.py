"""Memory for buffers and batches, and arguments that are arrays."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from . import _rows
from ._numbers import positive

Array = np.ndarray[Any, Any]


class Size(NamedTuple):
    """Size of a buffer, in rows or bytes."""

    capacity: int | None
    max_bytes: int | None
    chunk: int | None
    streams: int

    def core(self) -> tuple[int, int, int, int]:
        """Returns the size in the core's form, with 0 for None."""
        given = self._asdict()
        capacity, size, chunk, streams = (0 if given[name] is None else positive(name, given[name]) for name in given)
        return capacity, size, chunk, streams


def arrays_for(data: _rows.Rows, front: tuple[int, ...], out: Any, home: _core.Arena) -> list[Array]:
    """Returns the arrays for a batch of shape `front`: those of `out`, or new ones in the arena."""
    if isinstance(out, str):
        if out != "arena":
            raise ValueError(f"out is {out!r}; it must be 'arena', or a pytree of arrays")
        return [home.new_array((*front, *shape), dtype, "C", False, True) for dtype, shape in data.leaves]
    leaves, paths = _rows.flatten("out", data.skeleton, out), _rows.paths_of(data.skeleton, "out")
    return [
        _checked(path, leaf, dtype, (*front, *shape))
        for path, leaf, (dtype, shape) in zip(paths, leaves, data.leaves, strict=True)
    ]


def _checked(path: str, place: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Returns the array, or the host tensor as an array, if a batch can be copied into it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(place, torch.Tensor):
        place = place.detach().numpy()
    if not isinstance(place, np.ndarray):
        raise TypeError(f"{path} is a {type(place).__name__}; it must be an array")
    if place.shape != shape or place.dtype != dtype:
        text = f"{path} is of {place.dtype}, shape {place.shape}; the batch needs {dtype}, shape {shape}"
        raise ValueError(text)
    if not place.flags.c_contiguous or not place.flags.writeable:
        lacks = "contiguous" if place.flags.writeable else "writable"
        raise ValueError(f"{path} is not {lacks}; pass a contiguous, writable array")
    return place.reshape(-1).view(np.uint8) if dtype.kind not in "mM" else place.view(np.int64)


def numbers(what: str, given: Any) -> Array:
    """Returns an array of numbers; accepts tensors of any device, and arrays of other libraries."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    elif hasattr(given, "__cuda_array_interface__") and hasattr(given, "get"):
        given = given.get()  # an array of CuPy
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array, but masks are not supported; leave out the masked elements")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{what} is a {type(given).__name__}, which is not an array of numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        kind = f"a {type(given).__name__}" if array.dtype.hasobject else f"an array of {array.dtype}"
        raise TypeError(f"{what} is {kind}; it must be an array of numbers")
    return array


def updates(index: Any, priority: Any) -> tuple[Array, Array]:
    """Returns indices (uint64) and priorities (float64) of the same shape."""
    indices, priorities = numbers("index", index), numbers("priority", priority)
    if indices.dtype.kind not in "iu" and indices.size:
        raise TypeError(f"index is of {indices.dtype}; it must be of integers")
    if indices.shape != priorities.shape:
        text = f"index has the shape {indices.shape}, but priority has {priorities.shape}; they must be equal"
        raise ValueError(text)
    if indices.size and indices.min() < 0:
        raise ValueError(f"index has {indices.min()}, which no batch or add() returned")
    return np.ascontiguousarray(indices, np.uint64), np.ascontiguousarray(priorities, np.float64)
