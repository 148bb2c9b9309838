"""Checks of the parts of a message from which Python code builds a value.

Another process chose the parts. They are well-formed values, of any type and size. Each function here takes exact types
only, since a method of a subclass is code, and bounds what the builder may allocate or walk through before it starts.
docs/security.md has the table of what each kind of value may build, cost and run.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import Any

import numpy as np

from .errors import CorruptMessage, PickleRefused

_MAX_DIMS = 64
_DEVICE_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
_BOUND = 1 << 62  # of extents and strides, so that products of checked ones stay small

#: Types of what describes a tensor or an array on a device, after its kind: see _cuda_sent.Source.about.
_ABOUT: dict[str, tuple[tuple[type, ...], ...]] = {
    "torch": ((str,), (int,), (tuple,), (tuple,), (bool,), (bool,)),
    "array": ((str,), (int,), (tuple,), (tuple, type(None)), (bool,)),
}
_WHO = (bytes, int, int, int)
_WHERE = (bytes, bytes, int, int, bytes)


def are(values: object, types: tuple[type, ...]) -> bool:
    """True if `values` is a plain tuple of exactly these types."""
    return type(values) is tuple and tuple(map(type, values)) == types


def _corrupt(what: str) -> CorruptMessage:
    return CorruptMessage(f"The frame is corrupt: {what}")


# --- memory of devices ------------------------------------------------------------------------------------------------


def device(flat: object) -> tuple[tuple[Any, ...], tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """Returns how a device leaf describes its value, its sender and its memory; the last two are None without memory.

    CorruptMessage unless all types, counts and sizes are those that a sender writes.
    """
    if type(flat) is not tuple or len(flat) not in (1, 4):
        raise _corrupt("device memory is not made of four parts")
    check_about(flat[0])
    if len(flat) == 1:
        return flat[0], None, None
    who, where = flat[1], flat[2]
    if not are(who, _WHO) or not are(where, _WHERE):
        raise _corrupt("device memory does not say where it is as this version does")
    if [len(text) for text in (who[0], where[0], where[1], where[4])] != [16, 16, 64, 64]:
        raise _corrupt("a handle of device memory has another length")
    if any(not 0 <= number < _BOUND for number in (*who[1:], *where[2:4])):
        raise _corrupt("a number of device memory is out of range")
    return flat[0], who, where


def check_about(about: object) -> None:
    """CorruptMessage unless `about` describes a tensor or an array that may exist."""
    kinds = _ABOUT.get(about[0]) if type(about) is tuple and about and type(about[0]) is str else None
    if kinds is None or type(about) is not tuple or len(about) != len(kinds) + 1:
        raise _corrupt("device memory is of an unknown kind")
    if not all(type(part) in allowed for part, allowed in zip(about[1:], kinds, strict=True)):
        raise _corrupt("device memory is not described as this version does")
    kind, dtype, first, shape, strides = about[:5]
    if kind == "array" and not _DEVICE_DTYPE.fullmatch(dtype):
        raise _corrupt("device memory has a dtype that is no number")
    if not 0 <= first < _BOUND:
        raise _corrupt("device memory begins out of range")
    check_shape(shape, strides)


def check_shape(shape: tuple[Any, ...], strides: tuple[Any, ...] | None) -> None:
    """CorruptMessage unless these are extents of an array, and strides (None: contiguous) for each of them."""
    if len(shape) > _MAX_DIMS or (strides is not None and len(strides) != len(shape)):
        raise _corrupt("an array has another number of dimensions")
    if any(type(count) is not int or not 0 <= count < _BOUND for count in shape):
        raise _corrupt("an array has an extent that is none")
    if strides is not None and any(type(step) is not int or not -_BOUND < step < _BOUND for step in strides):
        raise _corrupt("an array has a stride that is none")
    if math.prod(shape) >= _BOUND:
        raise _corrupt("an array has more elements than there can be")


def imported_torch(may_import: bool) -> Any:
    """Returns torch. PickleRefused if this process has not imported it and `may_import` is false."""
    torch = sys.modules.get("torch")
    if torch is None and not may_import:
        raise PickleRefused(
            "The message holds a tensor of torch, which is not imported here, and allow_pickle is False; import torch "
            "before you receive tensors"
        )
    import torch  # type: ignore[no-redef]  # one that another thread is importing is waited for

    return torch


def torch_dtype(torch: Any, name: str) -> Any:
    """Returns the dtype of torch with that name. CorruptMessage if there is none; no module is loaded for it."""
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise _corrupt(f"a dtype {name[:100]!r}, which torch does not have here")
    return dtype


# --- masked arrays ----------------------------------------------------------------------------------------------------


def check_masked(data: Any, mask: Any, fill_value: Any) -> None:
    """CorruptMessage unless these are the parts of a masked array."""
    if type(data) is not np.ndarray or (mask is not False and type(mask) is not np.ndarray):
        raise _corrupt("a masked array is not made of arrays")
    if mask is not False and (mask.shape != data.shape or mask.dtype != _mask_dtype(data.dtype)):
        raise _corrupt("a mask does not fit its array")
    if fill_value is not None:
        _check_fill(data.dtype, fill_value)


@functools.lru_cache(1024)
def _mask_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a mask; NumPy makes it anew each time, with a call of Python for each field."""
    return np.ma.make_mask_descr(dtype)


def _check_fill(dtype: np.dtype[Any], fill: Any) -> None:
    if type(fill) is not np.ndarray or fill.ndim != 0:
        raise _corrupt("a fill value is no scalar")
    # A default one need not be of the array's dtype, but it is a number or a text that was converted to nothing else.
    if fill.dtype == dtype or (dtype.names is None and fill.dtype.kind in "?biufcSUmM" and fill.dtype.names is None):
        return
    raise _corrupt("a fill value is of another dtype than its array")
