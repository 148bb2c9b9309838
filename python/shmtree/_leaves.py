"""Leaves that are taken apart and put together in Python: masked arrays, torch tensors, memory of devices.

Torch is never imported to send. A receiver that refuses pickles must import it before it gets a tensor; any other
receiver imports it when a tensor comes. What CUDA needs is imported with the first such leaf.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core, _parts, _portable, _sparse

Bytes = npt.NDArray[np.uint8]

# The numbers of the frame's dtypes, which torch has under the same names.
_TENSOR_DTYPES = {name: number for number, name in enumerate(_core.DTYPES) if number}

REQUIRES_GRAD = 1
IS_PARAMETER = 2


def masked_parts(array: Any) -> tuple[Any, Any, Any, bool] | None:
    """Data, mask, fill value (None for the default one) and hardmask; None for what only pickle can send."""
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
    _parts.check_masked(data, mask, fill_value)
    made = _view_without_mask(data)
    if mask is not False:
        made._mask = mask
        made._sharedmask = False
    if fill_value is not None:
        made._fill_value = fill_value  # as it was: the default one need not be of the array's dtype
    made._hardmask = bool(hardmask)
    return made


_core._add_kind("masked_array", np.ma.MaskedArray, masked_parts, masked_build)


def set_dtype(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Changes the dtype of an array in place, as an ndarray: without what subclasses do on top."""
    # NumPy 2.5 deprecates the setter, and has this method for its own subclasses, which would make a mask in view().
    method = getattr(np.ndarray, "_set_dtype", None) or np.ndarray.dtype.__set__  # type: ignore[attr-defined]
    method(array, dtype)


def _view_without_mask(data: npt.NDArray[Any]) -> Any:
    """Returns a masked array that views `data`, without a mask and without a fill value.

    If `data` has fields, NumPy would make both. They have an element for each field, and there may be more fields than
    bytes: fields may overlap, or have no width.
    """
    if data.dtype.names is None:
        return data.view(np.ma.MaskedArray)
    made: Any = data.view(np.dtype((np.void, data.dtype.itemsize))).view(np.ma.MaskedArray)
    set_dtype(made, data.dtype)
    return made


def check_tensor_dtype(dtype: Any) -> None:
    """TypeError for those whose tensors are more than their elements, or that torch makes nothing of when they come."""
    name = str(dtype).removeprefix("torch.")
    if name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4"):
        raise TypeError(
            f"a quantized tensor ({dtype}) cannot be sent; send its int_repr() with its scale and zero point, "
            "or its dequantize()"
        )
    if name == "float4_e2m1fn_x2":
        raise TypeError(f"a tensor of {dtype} cannot be sent; send its view(torch.uint8)")


def tensor_parts(tensor: Any) -> tuple[Any, int, bool, int, tuple[int, ...], tuple[int, ...] | None] | None:
    """Owner of the memory, dtype number, requires_grad, address, shape, and strides in bytes unless it is contiguous.

    None for what only pickle can send: other layouts and devices, hooks, attributes. TypeError for quantized tensors,
    which torch itself is giving up.
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
    """A tensor on the bytes `memory`, with its first element at byte `first`; `strides` count bytes.

    Copies read-only memory, since torch has no read-only tensors. Raises PickleRefused if torch is not imported and
    `may_import` is false.
    """
    torch = _parts.imported_torch(may_import)
    dtype = _parts.torch_dtype(torch, _core.DTYPES[number])
    size = dtype.itemsize
    if not memory.size:
        made = torch.empty(0, dtype=torch.uint8).view(dtype).reshape(shape)
    else:
        if not memory.flags.writeable or memory.ctypes.data % size or memory.size % size or first % size:
            memory = memory.copy()
        elements = torch.from_numpy(memory).view(dtype)
        if strides is None:
            made = elements[first // size :].reshape(shape)
        else:
            steps = tuple(stride // size for stride in strides)
            made = torch.as_strided(elements, shape, steps, first // size)
    if flags & IS_PARAMETER:
        return torch.nn.Parameter(made, requires_grad=bool(flags & REQUIRES_GRAD))
    return made.requires_grad_() if flags & REQUIRES_GRAD else made


class DeviceLeaf:
    """What stands in a message for memory of a device, see _cuda_sent and _cuda_received."""

    __slots__ = ("flat",)

    def __init__(self, flat: tuple[Any, ...]) -> None:
        self.flat = flat


def device_flat(leaf: DeviceLeaf) -> tuple[Any, ...]:
    return leaf.flat


def receive_device(flat: Any, may_import: bool) -> Any:
    """Returns the tensor or array of a `DeviceLeaf`. Imports torch if it is needed and `may_import` is true."""
    about, who, where = _parts.device(flat)
    if about[0] == "torch":
        _parts.imported_torch(may_import)
    from . import _cuda_received

    return _cuda_received.receive(about, who, where)


def device_leaf(thing: Any, home: bytes | None, portable: bool) -> Any:
    """Returns the object to send in place of a sparse tensor, or of a tensor or array on a device.

    `home`: the uuid of the channel's arena, or None without a channel. Returns None if only pickle can send `thing`,
    such as memory of a device without a channel whose arena keeps it. Raises NotPortable for memory of a device if
    `portable` is true.
    """
    if portable and _portable.is_on_device(thing):
        _portable.refuse(thing)
    torch = sys.modules.get("torch")
    on_host = torch is not None and isinstance(thing, torch.Tensor) and not thing.is_cuda
    if on_host and (sparse := _sparse.leaf_of(thing)) is not None:
        return sparse
    arena = None if home is None or on_host else _core.find_arena(home)
    if arena is None:
        return None
    from . import _cuda_sent

    return _cuda_sent.leaf_of(thing, arena)
