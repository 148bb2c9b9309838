"""New arrays inside an arena."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core, _leaves


def new_array(arena: _core.Arena, shape: Any, dtype: Any, order: str, zeroed: bool, gift: bool = False) -> Any:
    """An ndarray; or, for a dtype of torch, a tensor. A `gift` is given away by whichever channel it is put into."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(dtype, torch.dtype):
        return arena.new_array(shape, dtype, order, zeroed, gift)
    _leaves.check_tensor_dtype(dtype)
    if order != "C":
        raise ValueError(f"order is {order!r}; a tensor is made in order 'C'")
    sizes = tuple(torch.Size([shape] if isinstance(shape, int) else shape))
    count = 1
    for size in sizes:
        count *= size
    memory = arena.new_array(count * dtype.itemsize, np.uint8, "C", zeroed, gift)
    return torch.from_numpy(memory).view(dtype).reshape(sizes)


def new_like(arena: _core.Arena, prototype: Any, dtype: Any, order: str) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(prototype, torch.Tensor):
        return new_array(arena, tuple(prototype.shape), dtype or prototype.dtype, "C", False)
    array = np.asanyarray(prototype)
    if order in ("A", "K"):
        order = "F" if array.flags.fnc else "C"
    return new_array(arena, array.shape, array.dtype if dtype is None else dtype, order, False)


def plain_dtype(dtype: Any) -> tuple[Any, str | None]:
    """What NumPy takes for it, and the name that torch has for it if it is torch's.

    For those that NumPy has not, it is the unsigned integer of that size.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(dtype, torch.dtype):
        return dtype, None
    _leaves.check_tensor_dtype(dtype)
    name = str(dtype).removeprefix("torch.")
    if name not in _core.DTYPES:
        raise TypeError(f"a shared array cannot be of {dtype}")
    try:
        return np.dtype(name), name
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}"), name
