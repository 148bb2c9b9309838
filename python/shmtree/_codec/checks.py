"""Checks of the parts of a message from which Python code builds a value.

The parts come from another process. They are well-formed values of any type and size. Each function here accepts exact
types only, since a subclass could run code of the sender. Before the builder starts, the function bounds what it may
allocate or walk through. docs/security.md has the table of what each kind of value may build, cost and run.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import numpy as np

from ..errors import CorruptMessage

_MAX_DIMS = 64
_DEVICE_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
_BOUND = 1 << 62  # limit of extents, strides and their products
#: Limit for sparse tensors. Torch allows as many elements as an int64 can count, since only a few of them are in
#: memory.
SPARSE_BOUND = 1 << 63
_IDENTITIES = 1 << 32  # limit of the identities of participants

#: Types of the parts after the kind in a description of a tensor or array on a device (`about` in shmtree.cuda._sent).
_ABOUT: dict[str, tuple[tuple[type, ...], ...]] = {
    "torch": ((str,), (int,), (tuple,), (tuple,), (bool,), (bool,)),
    "array": ((str,), (int,), (tuple,), (tuple, type(None)), (bool,)),
}
_SENDER = (bytes, int, int, int)
_LOCATION = (bytes, bytes, int, int, bytes)


def are(values: object, types: tuple[type, ...]) -> bool:
    """True if `values` is a plain tuple of exactly these types."""
    return type(values) is tuple and tuple(map(type, values)) == types


def _corrupt(what: str) -> CorruptMessage:
    return CorruptMessage(f"The frame is corrupt: {what}")


# --- memory of devices ------------------------------------------------------------------------------------------------


def device(flat: object) -> tuple[tuple[Any, ...], tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """Returns the descriptions of a device leaf: value, sender and memory. The last two are None if it has no memory.

    Raises CorruptMessage unless a sender could have written all types, counts and sizes.
    """
    if type(flat) is not tuple or len(flat) not in (1, 4):
        count = f"{len(flat)} parts" if type(flat) is tuple else f"a {type(flat).__name__}"
        raise _corrupt(f"device memory is described by {count}, not by a tuple of 1 or 4 parts")
    check_about(flat[0])
    if len(flat) == 1:
        return flat[0], None, None
    sender, location = flat[1], flat[2]
    if not are(sender, _SENDER) or not are(location, _LOCATION):
        raise _corrupt("the sender or the location of device memory has other fields than in this version")
    if (len(sender[0]), len(location[0]), len(location[1]), len(location[4])) != (16, 16, 64, 64):
        raise _corrupt("the identifiers of device memory do not have 16, 16, 64 and 64 bytes")
    for number in (*sender[1:], *location[2:4]):
        if not 0 <= number < _BOUND:
            raise _corrupt("an offset, a size or an identity of device memory is out of range")
    if sender[2] >= _IDENTITIES:
        raise _corrupt("an offset, a size or an identity of device memory is out of range")
    return flat[0], sender, location


def check_about(about: object) -> None:
    """Raises CorruptMessage unless `about` describes a possible tensor or array."""
    kinds = _ABOUT.get(about[0]) if type(about) is tuple and about and type(about[0]) is str else None
    if kinds is None or type(about) is not tuple or len(about) != len(kinds) + 1:
        raise _corrupt("device memory has an unknown kind, or another number of fields than in this version")
    for part, allowed in zip(about[1:], kinds, strict=True):
        if type(part) not in allowed:
            raise _corrupt("a field of device memory has another type than in this version")
    kind, dtype, first, shape, strides = about[:5]
    if kind == "array" and not _is_number_type(dtype):
        raise _corrupt("device memory has a dtype that is not numeric")
    if not 0 <= first < _BOUND:
        raise _corrupt("the first element of device memory is out of range; it must be 0 to 2**62 - 1")
    check_shape(shape, strides)


def _is_number_type(text: str) -> bool:
    """True if NumPy has a dtype of numbers with this text."""
    try:
        return _DEVICE_DTYPE.fullmatch(text) is not None and np.dtype(text).kind in "biufc"
    except TypeError:  # the kind of number does not exist in this size
        return False


def check_shape(shape: tuple[Any, ...], strides: tuple[Any, ...] | None, bound: int = _BOUND) -> None:
    """Raises CorruptMessage unless `shape` has extents and `strides` has one stride for each (None: contiguous).

    Each extent, and the number of elements, must be below `bound`.
    """
    if len(shape) > _MAX_DIMS or (strides is not None and len(strides) != len(shape)):
        counts = f"{len(shape)} dimensions and {'no' if strides is None else len(strides)} strides"
        raise _corrupt(f"an array has {counts}; at most {_MAX_DIMS} dimensions are possible, each with one stride")
    for count in shape:
        if type(count) is not int or not 0 <= count < bound:
            raise _corrupt(f"an array has an invalid dimension; each must be an int from 0 to {bound - 1}")
    for step in strides or ():
        if type(step) is not int or not -_BOUND < step < _BOUND:
            raise _corrupt("an array has an invalid stride; each must be an int below 2**62")
    if math.prod(shape) >= bound:
        raise _corrupt(f"an array has too many elements; it must have fewer than {bound}")


# --- masked arrays ----------------------------------------------------------------------------------------------------


def check_masked(data: Any, mask: Any, fill_value: Any) -> None:
    """Raises CorruptMessage unless these are the parts of a masked array."""
    if type(data) is not np.ndarray or (mask is not False and type(mask) is not np.ndarray):
        raise _corrupt("the data and mask of a masked array are not arrays")
    if mask is not False and (mask.shape != data.shape or mask.dtype != _mask_dtype(data.dtype)):
        raise _corrupt("the mask of an array has another shape or dtype than the array requires")
    if mask is False and data.dtype.itemsize == 0:  # for None, NumPy would allocate a mask of one byte for each element
        raise _corrupt("a masked array has elements of 0 bytes and no mask")
    if fill_value is not None:
        _check_fill(data.dtype, fill_value)


@functools.lru_cache(1024)
def _mask_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a mask. Cached, since NumPy builds it each time with one Python call per field."""
    return np.ma.make_mask_descr(dtype)


def _check_fill(dtype: np.dtype[Any], fill: Any) -> None:
    if type(fill) is not np.ndarray or fill.ndim != 0:
        raise _corrupt("the fill value of a masked array is not a scalar")
    # A default fill value may have another dtype than the array, but then it is a plain number or text.
    if fill.dtype == dtype or (dtype.names is None and fill.dtype.kind in "?biufcSUmM" and fill.dtype.names is None):
        return
    raise _corrupt("the fill value of a masked array has another dtype than the array")
