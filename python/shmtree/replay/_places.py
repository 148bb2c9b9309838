"""Where a buffer, and what is drawn of it, has room; and arguments that are arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import _core
from .._arena import Arena
from .._arguments import one_of, whole
from . import _rows

# What an arena of a buffer's own has besides the buffer: batches of sample(out="arena").
_LEAST_SPARE = 16 << 20
_MOST_ROWS = 1 << 40

Array = np.ndarray[Any, Any]


def positive(what: str, value: Any) -> int:
    number = whole(what, value)
    if number < 1:
        raise ValueError(f"{what} is {value}; it must be at least 1")
    return number


def home_for(needed: int, rows: int, arena: Arena | None) -> _core.Arena:
    """An arena that a full buffer of so many bytes fits in."""
    if arena is None:
        left = _core.available_memory()
        if needed > left:
            raise ValueError(f"a replay buffer of {rows} rows takes {needed} bytes, and the machine has {left} left")
        return _core.Arena.create(needed + max(_LEAST_SPARE, needed // 8), 0, False)
    home = arena._open()
    if needed > home.max_bytes:
        raise ValueError(f"a replay buffer of {rows} rows takes {needed} bytes, and the arena has {home.max_bytes}")
    return home


def rows_within(spec: _core.ReplaySpec, max_bytes: int, chunk: int, streams: int) -> int:
    """As many rows as a buffer of so many bytes has."""

    def takes(rows: int) -> int:
        fitting = min(chunk, 1 << (rows.bit_length() - 1))
        return spec.total_bytes(rows, fitting, streams)

    if takes(1) > max_bytes:
        raise ValueError(f"max_bytes is {max_bytes}; a buffer of one such row takes {takes(1)}")
    low, high = 1, 2
    while high < _MOST_ROWS and takes(high) <= max_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) <= max_bytes else (low, middle)
    return low


def arrays_for(data: _rows.Rows, n: int, out: Any, home: _core.Arena) -> list[Array]:
    """The arrays that a batch of n rows is drawn into: those of `out`, or new ones of the arena."""
    if isinstance(out, str):
        one_of("out", out, "arena")
        return [home.new_array((n, *shape), dtype, "C", False, True) for dtype, shape in data.leaves]
    leaves = _rows.flatten("out", data.skeleton, out)
    paths = _rows.paths_of(data.skeleton, "out")
    return [
        checked(path, leaf, dtype, (n, *shape))
        for path, leaf, (dtype, shape) in zip(paths, leaves, data.leaves, strict=True)
    ]


def checked(path: str, place: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array, or a tensor of the host, that a batch can be drawn into."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(place, torch.Tensor):
        place = place.detach().numpy()
    if not isinstance(place, np.ndarray):
        raise TypeError(f"{path} is a {type(place).__name__}; it must be an array")
    if place.shape != shape or place.dtype != dtype:
        text = f"{path} is of {place.dtype}, shape {place.shape}; the batch needs {dtype}, shape {shape}"
        raise ValueError(text)
    if not place.flags.c_contiguous or not place.flags.writeable:
        raise ValueError(f"{path} is not contiguous, or not writable: nothing can be drawn into it")
    return place.reshape(-1).view(np.uint8) if dtype.kind not in "mM" else place.view(np.int64)


def numbers(what: str, given: Any) -> Array:
    """An array of what may be a tensor of any device, or of torch's or others' kind."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    elif hasattr(given, "__cuda_array_interface__") and hasattr(given, "get"):
        given = given.get()  # CuPy's
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{what} is of {array.dtype}; it must be numbers")
    return array
