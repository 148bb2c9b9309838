"""Splits masked arrays into parts that a frame can contain, and builds them again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from . import checks


def masked_parts(array: Any) -> tuple[Any, Any, Any, bool] | None:
    """Returns data, mask, fill value (None: default) and hardmask; or None if only pickle can send the array."""
    attributes = array.__dict__
    if array._baseclass is not np.ndarray or array.dtype.hasobject or array._optinfo:
        return None
    known = {"_baseclass", "_basedict", "_fill_value", "_hardmask", "_isfield", "_mask", "_optinfo", "_sharedmask"}
    if not known.issuperset(attributes):
        return None
    mask = False if array._mask is np.ma.nomask else array._mask
    return array._data, mask, array._fill_value, bool(array._hardmask)


def masked_build(data: Any, mask: Any, fill_value: Any, hardmask: int, _trusted: bool) -> Any:
    """Returns the masked array that has these parts. Raises CorruptMessage if they do not fit together."""
    checks.check_masked(data, mask, fill_value)
    array = _view_without_mask(data)
    if mask is not False:
        array._mask = mask
        array._sharedmask = False
    if fill_value is not None:
        array._fill_value = fill_value  # unchanged: the default fill value need not have the array's dtype
    array._hardmask = bool(hardmask)
    return array


_core._add_kind("masked_array", np.ma.MaskedArray, masked_parts, masked_build)


def set_dtype(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Changes the dtype of an array in place by ndarray's own setter, and not by that of a subclass."""
    # NumPy 2.5 deprecates the setter, and has this method for its own subclasses, which would make a mask in view().
    method = getattr(np.ndarray, "_set_dtype", None) or np.ndarray.dtype.__set__  # type: ignore[attr-defined]
    method(array, dtype)


def _view_without_mask(data: npt.NDArray[Any]) -> Any:
    """Returns a masked array that views `data`, without a mask and without a fill value.

    For a dtype with fields, NumPy would make a mask and a fill value. Each has one element per field, and a dtype may
    have more fields than bytes, because fields may overlap or have no width.
    """
    if data.dtype.names is None:
        return data.view(np.ma.MaskedArray)
    array: Any = data.view(np.dtype((np.void, data.dtype.itemsize))).view(np.ma.MaskedArray)
    set_dtype(array, data.dtype)
    return array
