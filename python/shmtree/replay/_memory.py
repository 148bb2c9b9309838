"""Memory for buffers and batches, and arguments that are arrays."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from . import _rows
from ._numbers import positive
from ._spec import Spec

# Free bytes in an arena that a buffer makes for itself, for batches of sample(out="arena").
_MIN_SPARE = 16 << 20

Array = np.ndarray[Any, Any]


def _available(arena: _core.Arena | None) -> tuple[int, str]:
    """Returns the bytes available for a buffer, and a text that names what limits them, for errors."""
    if arena is None:
        return _core.available_memory(), "this machine has only"
    return arena.max_bytes, "the arena has only"


class Size(NamedTuple):
    """Size of a buffer, in rows or bytes."""

    capacity: int | None
    max_bytes: int | None
    chunk: int | None
    streams: int


def _terms(core: _core.ReplaySpec, size: Size, arena: _core.Arena | None) -> tuple[int, int, int]:
    """Returns the number of rows, the chunk (0: chosen by the core), and the number of streams."""
    terms = (positive("chunk", size.chunk) if size.chunk is not None else 0, positive("streams", size.streams))
    capacity = size.capacity
    if capacity is None:
        capacity = _capacity_within(core, positive("max_bytes", size.max_bytes), arena, *terms)
    return (positive("capacity", capacity), *terms)


def check(buffer: _core.Replay, spec: Spec, size: Size, arena: _core.Arena | None) -> None:
    """Raises ValueError, with the differences, unless a buffer was made with these arguments."""
    core = spec.core()
    buffer.check_options(core, *_terms(core, size, arena))


def make(spec: Spec, size: Size, arena: _core.Arena | None) -> _core.Replay:
    """Makes a new buffer."""
    core = spec.core()
    rows, chunk, streams = _terms(core, size, arena)
    home = _home_for(core.total_bytes(rows, chunk, streams), rows, arena)
    return _core.Replay.create(home, core, rows, chunk, streams, spec.nests())


def _home_for(needed: int, rows: int, arena: _core.Arena | None) -> _core.Arena:
    """Returns an arena in which a full buffer of `needed` bytes fits."""
    left, owner_has = _available(arena)
    if needed > left:
        raise ValueError(f"a replay buffer of {rows} rows takes {needed} bytes, but {owner_has} {left}")
    return arena or _core.Arena.create(needed + max(_MIN_SPARE, needed // 8), 0, False)


def _capacity_within(
    spec: _core.ReplaySpec, max_bytes: int, arena: _core.Arena | None, chunk: int, streams: int
) -> int:
    """Returns the number of rows of a buffer of at most `max_bytes`."""
    capacity = spec.capacity_within(max_bytes, chunk, streams)
    left, owner_has = _available(arena)
    if max_bytes > left:
        raise ValueError(f"max_bytes is {max_bytes}, but {owner_has} {left}")
    return capacity


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
