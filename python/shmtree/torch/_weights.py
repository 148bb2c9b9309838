"""Module weights as versions of a Latest, and back into a module."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from .._ipc import arrays
from .._ipc.latest import Latest


def publish(latest: Latest, module: Any, timeout: float | None = None) -> int:
    """Publishes the state dict of a module, or a dict like one, as arrays.

    Readers get a dict of NumPy arrays, read-only views of the one copy, for `load_into`. A dtype that NumPy lacks
    (bfloat16, the float8 types) becomes an unsigned integer of its size with the same bits. Tensors on devices are
    copied directly into shared memory. Entries that are not tensors are published unchanged.

    Args:
        latest: Where to publish.
        module: A module, or a dict of tensors.
        timeout: Seconds to wait for memory; see `Latest.publish`, also for the errors.

    Returns:
        The number of the version.
    """
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module
    values = {name: _array_of(latest, each) if isinstance(each, torch.Tensor) else each for name, each in state.items()}
    return latest.publish(values, timeout)


def load_into(module: Any, value: Any) -> None:
    """Copies a version that `publish` made, or any state dict, into a module of the same shapes, in place.

    Nothing is allocated: parameters and buffers keep their memory, on any device, and optimizers keep their state.
    Parameters that are views of one another are each written once.

    Args:
        module: A module, or a dict of tensors.
        value: A value that `publish` has published, or a state dict.

    Raises:
        KeyError: A name is missing on either side; nothing was copied.
        ValueError: A shape differs; nothing was copied.
    """
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module
    places = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
    given = {name: each for name, each in value.items() if isinstance(each, torch.Tensor | np.ndarray)}
    if places.keys() != given.keys():
        missing, unknown = sorted(places.keys() - given.keys()), sorted(given.keys() - places.keys())
        raise KeyError(f"keys missing in the version: {missing or 'none'}; in the module: {unknown or 'none'}")
    for name, place in places.items():
        if tuple(place.shape) != tuple(given[name].shape):
            shape = tuple(given[name].shape)
            raise ValueError(f"{name!r} has shape {shape} in the version, but {tuple(place.shape)} in the module")
    with torch.no_grad():
        for name, place in places.items():
            source = given[name]
            place.copy_(source if isinstance(source, torch.Tensor) else _tensor_on(source, place.dtype))


def _array_of(latest: Latest, tensor: torch.Tensor) -> Any:
    source = tensor.detach().resolve_conj().resolve_neg()
    plain, name = arrays.plain_dtype(source.dtype)
    if source.device.type != "cpu" or source.layout is not torch.strided:
        array = latest.new_empty(tuple(source.shape), plain)
        if array.size:
            _tensor_on(array, source.dtype).copy_(source)
        return array
    if name is not None and str(np.dtype(plain)) != name:
        source = source.contiguous().view(getattr(torch, f"int{8 * source.element_size()}"))
        return source.numpy().view(plain)
    return source.numpy()


def _tensor_on(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor on the memory of the array. The tensor keeps the memory alive.

    If the array holds the bits of `dtype`, it has this dtype.

    Using ctypes avoids torch's warning about read-only memory; the tensor is not written.
    """
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    plain, name = arrays.plain_dtype(dtype)
    is_bits = name is not None and str(np.dtype(plain)) != name and array.dtype == plain
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory.keeps = array  # also keeps a copy that was made above
    flat = torch.frombuffer(memory, dtype=dtype) if is_bits else torch.from_numpy(np.frombuffer(memory, array.dtype))
    return flat.reshape(array.shape)
