"""Dense tensors of torch in CPU memory.

Sending never imports torch. A receiver that refuses pickles must import torch before it gets a tensor; any other
receiver imports it when a tensor arrives.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .._codec import optional

Bytes = npt.NDArray[np.uint8]

# Dtype numbers in a frame; torch has the dtypes under the same names.
_TENSOR_DTYPES = {name: number for number, name in enumerate(_core.DTYPES) if number}

REQUIRES_GRAD = 1
IS_PARAMETER = 2


def check_tensor_dtype(dtype: Any) -> None:
    """Raises TypeError for quantized dtypes, and for dtypes that torch cannot build on arrival."""
    name = str(dtype).removeprefix("torch.")
    if name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4"):
        raise TypeError(
            f"a quantized tensor ({dtype}) cannot be sent; send its int_repr() with its scale and zero point, "
            "or its dequantize()"
        )
    if name == "float4_e2m1fn_x2":
        raise TypeError(f"a tensor of {dtype} cannot be sent; send its view(torch.uint8)")


def tensor_parts(tensor: Any) -> tuple[Any, int, bool, int, tuple[int, ...], tuple[int, ...] | None] | None:
    """Returns the owner of the memory, dtype number, requires_grad, address, shape, and strides of a tensor.

    Strides are in bytes, or None for a contiguous tensor. Returns None for a tensor that only pickle can send: other
    layouts and devices, hooks, attributes. Raises TypeError for quantized tensors, which torch itself is removing.
    """
    torch = sys.modules["torch"]
    check_tensor_dtype(tensor.dtype)
    number = _TENSOR_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
    if number is None or not plain or tensor.__dict__ or tensor._backward_hooks:
        return None
    owner = tensor.detach().resolve_conj().resolve_neg()
    strides = None
    if not owner.is_contiguous():
        strides = tuple(stride * owner.element_size() for stride in owner.stride())
    return owner, number, tensor.requires_grad, owner.data_ptr(), tuple(owner.shape), strides


def tensor_build(
    memory: Bytes,
    number: int,
    flags: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    first: int,
    may_import: bool = True,
) -> Any:
    """Returns a tensor on the bytes `memory`, with its first element at byte `first`; `strides` are in bytes.

    Copies read-only memory, since torch has no read-only tensors. Raises PickleRefused if torch is not imported and
    `may_import` is false.
    """
    torch = optional.imported_torch(may_import)
    dtype = optional.torch_dtype(torch, _core.DTYPES[number])
    size = dtype.itemsize
    if not memory.size:
        tensor = torch.empty(0, dtype=torch.uint8).view(dtype).reshape(shape)
    else:
        if not memory.flags.writeable or memory.ctypes.data % size or memory.size % size or first % size:
            memory = memory.copy()
        elements = torch.from_numpy(memory).view(dtype)
        if strides is None:
            tensor = elements[first // size :].reshape(shape)
        else:
            steps = tuple(stride // size for stride in strides)
            tensor = torch.as_strided(elements, shape, steps, first // size)
    if flags & IS_PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=bool(flags & REQUIRES_GRAD))
    return tensor.requires_grad_() if flags & REQUIRES_GRAD else tensor
