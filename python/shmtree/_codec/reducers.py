"""Reducers for native kinds inside a message that needs pickle. Pickle itself would refuse or copy these values."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .. import _core
from . import dtypes, masked, optional, out_of_band, tensors
from . import portable as _portable
from .pickle_names import known_as

_MODULE = "shmtree._reducers"  # module by which pickles name the functions below

Reducer = Callable[[Any], Any]

_TABLE: dict[type, Reducer] = {}
_REGISTERED: dict[str, type] = {}


def table(independent: bool, home: bytes | None, portable: bool) -> dict[type, Reducer]:
    """Returns the reducers by exact class.

    Args:
        independent: True if arrays are to arrive writable, as from a standard queue.
        home: The uuid of the message's arena, or None if it is not for a channel.
        portable: True to refuse objects that are valid on this machine only.
    """
    table = dict(_TABLE)
    if portable:
        table.update(_portable.refused())
    table.update(tensors.library.reducers(home, portable))
    jax_class = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    if jax_class is not None:
        table[jax_class] = _reduce_jax
    for module, name in _portable.DEVICE_ARRAYS:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None:
            table[cls] = functools.partial(reduce_device_array, home=home, portable=portable)
    table.update(out_of_band.reducers())
    if independent:
        table[np.ndarray] = _reduce_as_own
    return table


class StandIn(bytearray):
    """Represents, inside the pickle, a value that is a node of the frame outside the pickle.

    The pickler makes an out-of-band buffer of it. The unpickler gets the value in place of that buffer.
    """

    __slots__ = ("value",)

    value: Any


def beside(value: Any) -> Any:
    stand_in = StandIn(1)
    stand_in.value = value
    return _given, (pickle.PickleBuffer(stand_in),)


@known_as(_MODULE, "_given")
def _given(value: Any) -> Any:
    return value


def _has_native_kind(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "SU" and not dtype.itemsize:  # NumPy would make an array of one character for each element
        return False
    if dtype.isbuiltin == 1 and dtype.metadata is None and dtype.kind in "biufcSU":
        return True
    return dtypes.describe(dtype, False) is not None


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """Reduces an array.

    NumPy's own reduction copies strided arrays, dates and other packages' dtypes into the pickle.
    """
    dtype = array.dtype
    if _has_native_kind(dtype):
        return beside(array)
    if dtype.isbuiltin == 2 and not dtype.hasobject and dtype.itemsize in (1, 2, 4, 8):  # a dtype of another package
        return _build_view, (array.view(f"u{dtype.itemsize}"), dtype)
    if (not array.flags.forc or dtype.kind in "mMV") and dtype.itemsize and not dtype.hasobject:
        return _build_array, _parts_of(array)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


@known_as(_MODULE, "_build_view")
def _build_view(memory: np.ndarray[Any, Any], dtype: Any) -> Any:
    return memory.view(dtype)


def _reduce_masked_array(array: Any) -> Any:
    if masked.masked_parts(array) is not None and _has_native_kind(array.dtype):
        return beside(array)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _parts_of(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
    own = array if array.flags.forc else array.copy()
    memory: Any = own.reshape(-1, order=order).view(np.uint8)
    return pickle.PickleBuffer(memory), array.dtype, array.shape, order


@known_as(_MODULE, "_build_array")
def _build_array(memory: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    return np.ndarray(shape, dtype, memory, order=order)


def _reduce_jax(array: Any) -> Any:
    """Reduces a JAX array. JAX's own reduction copies the memory into the pickle."""
    if array.weak_type or not array.is_fully_addressable or array.dtype.kind not in "biufcV":
        return array.__reduce__()  # only JAX can build such arrays; kind V: dtypes of ml_dtypes
    return _build_jax, _parts_of(np.asarray(array))


@known_as(_MODULE, "_build_jax")
def _build_jax(*parts: Any) -> Any:
    return optional.imported_jax().numpy.asarray(_build_array(*parts))


def _reduce_as_own(array: np.ndarray[Any, Any]) -> Any:
    # A node outside the pickle arrives writable in any case, whereas pickle would keep the array read-only.
    own = array if array.flags.writeable or _has_native_kind(array.dtype) else array.copy(order="K")
    return _reduce_array(own)


def _reduce_memoryview(view: memoryview) -> tuple[Any, ...]:
    array = np.asarray(view)
    if array.dtype.hasobject:
        raise TypeError(f"a memoryview of format {view.format!r} cannot be sent")
    return memoryview, (array,)


def reduce_device_array(array: Any, home: bytes | None, portable: bool) -> Any:
    leaf = tensors.library.device_leaf(array, home, portable)
    reduce = _TABLE.get(type(leaf))  # also None for a leaf with a native kind
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduce is None else reduce(leaf)


def add_registered(cls: type, flatten: Reducer, name: str) -> None:
    """Lets pickle send instances of a registered class as their flattened form.

    If another class was registered under the name before, its instances are pickled by their own rules from now on.
    """
    _TABLE.pop(_REGISTERED.get(name, cls), None)
    _REGISTERED[name] = cls
    _TABLE[cls] = lambda instance: (_unflatten, (name, flatten(instance)))


@known_as(_MODULE, "_unflatten")
def _unflatten(name: str, flat: Any) -> Any:
    return _core._unflatten(name, flat)


_TABLE[memoryview] = _reduce_memoryview
_TABLE[np.ndarray] = _reduce_array
_TABLE[np.ma.MaskedArray] = _reduce_masked_array
