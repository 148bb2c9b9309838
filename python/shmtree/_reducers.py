"""How native kinds that pickle refuses, or would copy, are reduced inside a message that goes through pickle."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from . import _core, _leaves, _out_of_band, _portable

Reducer = Callable[[Any], Any]

_TABLE: dict[type, Reducer] = {}
_REGISTERED: dict[str, type] = {}


def table(independent: bool, home: bytes | None, portable: bool) -> dict[type, Reducer]:
    """The reducers by exact class.

    `independent`: arrays are to arrive writable, as from a standard queue. `home`: the uuid of the arena of the
    message, if it is for a channel. `portable`: what means something on this machine only is refused.
    """
    made = dict(_TABLE)
    if portable:
        made.update(_portable.refused())
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        made[torch.Tensor] = made[torch.nn.Parameter] = functools.partial(_reduce_tensor, home=home, portable=portable)
    jax_class = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    if jax_class is not None:
        made[jax_class] = _reduce_jax
    for module, name in _portable.DEVICE_ARRAYS:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None:
            made[cls] = functools.partial(_reduce_device_array, home=home, portable=portable)
    made.update(_out_of_band.reducers())
    if independent:
        made[np.ndarray] = _reduce_as_writable
    return made


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """NumPy's own reduction copies strided arrays, dates and other packages' dtypes into the pickle."""
    dtype = array.dtype
    may_be_copied = not array.flags.forc or dtype.kind in "mMV" or dtype.isbuiltin == 2  # 2: of another package
    if may_be_copied and dtype.itemsize and not dtype.hasobject:
        return _build_array, _parts_of(array)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _parts_of(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
    own = array if array.flags.forc else array.copy()
    memory: Any = own.reshape(-1, order=order).view(np.uint8)
    return pickle.PickleBuffer(memory), array.dtype, array.shape, order


def _build_array(memory: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    return np.ndarray(shape, dtype, memory, order=order)


def _reduce_jax(array: Any) -> Any:
    """JAX's own reduction copies the memory into the pickle."""
    if array.weak_type or not array.is_fully_addressable or array.dtype.kind not in "biufcV":
        return array.__reduce__()  # what it alone can do; kind V: ml_dtypes
    return _build_jax, _parts_of(np.asarray(array))


def _build_jax(*parts: Any) -> Any:
    import jax

    return jax.numpy.asarray(_build_array(*parts))


def _reduce_as_writable(array: np.ndarray[Any, Any]) -> Any:
    # pickle keeps in mind that the memory of an array cannot be written.
    own = array if array.flags.writeable else array.copy(order="K")
    return _reduce_array(own)


def _reduce_memoryview(view: memoryview) -> tuple[Any, ...]:
    array = np.asarray(view)
    if array.dtype.hasobject:
        raise TypeError(f"a memoryview of format {view.format!r} cannot be sent")
    return memoryview, (np.ascontiguousarray(array),)


def _build_tensor(memory: Any, *arguments: Any) -> Any:
    return _leaves.tensor_build(np.frombuffer(memory, np.uint8), *arguments)


def _reduce_device_array(array: Any, home: bytes | None, portable: bool) -> Any:
    leaf = _leaves.device_leaf(array, home, portable)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if leaf is None else _TABLE[type(leaf)](leaf)


def _reduce_tensor(tensor: Any, home: bytes | None, portable: bool) -> Any:
    """Like torch's own reduction, with the memory as an out-of-band buffer that tensors on it share again."""
    parts = _leaves.tensor_parts(tensor)
    if parts is None:
        return _reduce_device_array(tensor, home, portable)
    owner, number, requires_grad, _, shape, strides = parts
    if strides is not None:
        owner, strides = owner.contiguous(), None
    import torch

    flags = int(requires_grad) | (_leaves.IS_PARAMETER if type(tensor) is torch.nn.Parameter else 0)
    memory = owner.reshape(-1).view(torch.uint8).numpy()
    return _build_tensor, (pickle.PickleBuffer(memory), number, flags, shape, strides, 0)


def add_registered(cls: type, flatten: Reducer, name: str) -> None:
    """Lets pickle send instances of a registered class as their flattened form.

    Those of another class that was registered under the name before are pickled by their own rules from now on.
    """
    _TABLE.pop(_REGISTERED.get(name, cls), None)
    _REGISTERED[name] = cls
    _TABLE[cls] = lambda instance: (_unflatten, (name, flatten(instance)))


def _unflatten(name: str, flat: Any) -> Any:
    return _core._unflatten(name, flat)


_TABLE[memoryview] = _reduce_memoryview
_TABLE[np.ndarray] = _reduce_array
