"""Creation of arrays inside an arena."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._codec import tensors


def new_array(arena: _core.Arena, shape: Any, dtype: Any, order: str, zeroed: bool, gift: bool = False) -> Any:
    """Returns a new ndarray, or a tensor for a dtype of torch.

    The first channel that a `gift` is put into takes it over.
    """
    if tensors.library.is_dtype(dtype):
        return tensors.library.new_tensor(arena, shape, dtype, order, zeroed, gift)
    return arena.new_array(shape, dtype, order, zeroed, gift)


def new_like(arena: _core.Arena, prototype: Any, dtype: Any, order: str) -> Any:
    if tensors.library.is_tensor(prototype):
        return new_array(arena, tuple(prototype.shape), dtype or prototype.dtype, "C", False)
    array = np.asanyarray(prototype)
    if order in ("A", "K"):
        order = "F" if array.flags.fnc else "C"
    return new_array(arena, array.shape, array.dtype if dtype is None else dtype, order, False)


def plain_dtype(dtype: Any) -> tuple[Any, str | None]:
    """Returns the NumPy dtype for a dtype, and torch's name for it if it is a dtype of torch.

    A dtype that NumPy lacks is represented by the unsigned integer of the same size.
    """
    return tensors.library.plain_dtype(dtype) if tensors.library.is_dtype(dtype) else (dtype, None)
