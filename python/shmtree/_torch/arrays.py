"""Tensors on memory of arenas, and memory of tensors as arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import _core
from .tensors import check_tensor_dtype


def is_tensor(obj: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def is_dtype(dtype: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def plain_dtype(dtype: Any) -> tuple[Any, str]:
    """Returns the NumPy dtype for a torch dtype, and torch's name for it.

    A dtype that NumPy lacks is represented by the unsigned integer of the same size.
    """
    check_tensor_dtype(dtype)
    name = str(dtype).removeprefix("torch.")
    if name not in _core.DTYPES:
        raise TypeError(f"dtype is {dtype}; shared arrays do not support it")
    try:
        plain = np.dtype(name)
    except TypeError:
        plain = None
    # ml_dtypes registers the names of its own dtypes with NumPy. Only NumPy's dtypes are sent without pickle.
    is_of_numpy = plain is not None and plain.isbuiltin == 1
    return plain if is_of_numpy else np.dtype(f"u{dtype.itemsize}"), name


def new_tensor(arena: _core.Arena, shape: Any, dtype: Any, order: str, zeroed: bool, gift: bool) -> Any:
    torch: Any = sys.modules["torch"]
    check_tensor_dtype(dtype)
    if order != "C":
        raise ValueError(f"order is {order!r}; with a torch dtype it must be 'C'")
    sizes = tuple(torch.Size([shape] if isinstance(shape, int) else shape))
    count = 1
    for size in sizes:
        count *= size
    memory = arena.new_array(count * dtype.itemsize, np.uint8, "C", zeroed, gift)
    return torch.from_numpy(memory).view(dtype).reshape(sizes)


def as_tensor(array: np.ndarray[Any, Any], dtype: str | None) -> Any:
    """Returns a tensor on the memory of an array; `dtype` is the name of a torch dtype that NumPy lacks."""
    import torch

    if dtype is None:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.reshape(-1).view(np.uint8))  # older releases of torch lack most unsigned integers
    return bits.view(getattr(torch, dtype)).reshape(array.shape)


def as_array(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Returns the memory of a tensor as an array of its bits; None unless it is contiguous and on the CPU."""
    torch: Any = sys.modules["torch"]
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        return None
    plain, _ = plain_dtype(tensor.dtype)
    bits: np.ndarray[Any, Any] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    array: np.ndarray[Any, Any] = bits.view(plain).reshape(tuple(tensor.shape))
    return array
